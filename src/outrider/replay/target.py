"""A target that has already said everything: it accepts rows and computes nothing.

Its laws are empty words; what it emits comes from `RecordedCoins`, which answer every question of the MATCH rule with
the recorded token. This module knows texts and positions; it does not know engines. Invariant: a token depends on the
request and the position alone, so any proposal ends in the recorded text.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from outrider.analysis.cost import CostCurve
from outrider.cache.base import Cache
from outrider.cache.slots import Slots, check_nodes
from outrider.core.coins import At
from outrider.core.types import IntArray
from outrider.engine.batch import BatchLaws
from outrider.errors import UnsupportedError
from outrider.models.base import ForwardInputs, ForwardOutputs

if TYPE_CHECKING:
    import torch

__all__ = ["BEYOND", "EmptyCache", "RecordedCoins", "RecordedLaws", "RecordedTarget", "runner_ups"]

BEYOND = -1
"""What is said after the end of a record; no draft token equals it."""


class EmptyCache:
    """Counts rows and stores nothing; implements `cache.base.Cache`.

    Args:
        max_tokens: rows over all slots that may be reserved; None for no bound.
    """

    nbytes = row_bytes = 0

    @property
    def free_rows(self) -> int | None:
        """Rows that may still be reserved; None without a bound."""
        return self._slots.free_rows

    def __init__(self, max_tokens: int | None = None) -> None:
        self._slots = Slots(max_tokens)
        self.acquire, self.release, self.length = self._slots.acquire, self._slots.release, self._slots.length
        self.reserve, self.truncate, self.extend = self._slots.reserve, self._slots.truncate, self._slots.extend
        self.reserved = self._slots.reserved
        self.check_integrity = self._slots.check_integrity

    def keep(self, slot: int, length: int, nodes: Sequence[int]) -> None:
        """Keep the first `length` rows and as many more as there are nodes."""
        kept = [int(node) for node in nodes]
        check_nodes(kept, self.length(slot) - length)
        self.truncate(slot, length + len(kept))

    def copy(self, source: int, to: int, length: int) -> None:
        """Let slot `to` hold `length` rows and nothing else."""
        if length > self.length(source):
            raise ValueError(f"slot {source} holds {self.length(source)} rows, cannot copy {length}")
        self.reserve(to, length)
        self.extend(to, length)


class RecordedTarget:
    """Implements `models.base.Target` without a model.

    Args:
        vocab_size: width of the logits that the recorded model had.
        context_length: positions that it held.
        cost: what its passes take; without one a pass takes no time.
    """

    weight_bytes = 0

    def __init__(self, vocab_size: int, context_length: int, cost: CostCurve | None = None) -> None:
        self.vocab_size = vocab_size
        self.context_length = context_length
        self._cost = cost

    def make_cache(self, max_tokens: int | None = None) -> EmptyCache:
        """Give an empty cache."""
        return EmptyCache(max_tokens)

    def forward(self, inputs: ForwardInputs, cache: Cache) -> ForwardOutputs:
        """Take note of the rows; the logits are empty, the seconds are what the cost curve says."""
        if not isinstance(cache, EmptyCache):
            raise TypeError("a recorded target keeps no keys and values; give it a cache of its own")
        for segment in inputs.segments:
            cache.extend(segment.slot, segment.num_cached + segment.num_rows)
        empty = cast("torch.Tensor", np.empty((len(inputs.logits_rows), 0), dtype=np.float32))
        longest = max((segment.num_cached for segment in inputs.segments), default=0)
        seconds = self._cost.seconds(len(inputs.token_ids), longest) if self._cost is not None else 0.0
        return ForwardOutputs(empty, {}, seconds)


class RecordedLaws(BatchLaws):
    """Laws of one entry, enough for rules that only ask their coins."""

    def at(self, requests: IntArray, nodes: IntArray) -> Any:  # noqa: ARG002 - the same for all nodes
        """[k, 1] ones."""
        return np.ones((len(requests), 1))

    def only_token(self, request: int, node: int) -> int | None:  # noqa: ARG002 - the coins know it
        """None: the record says which token it is."""
        return None


class RecordedCoins:
    """Answer the MATCH rule with recorded tokens; implements `core.coins.Coins`.

    Args:
        texts: [number of requests] whole sequences, prompts included, in the order of the batch.
    """

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        self._texts = texts

    def sample(self, law: Any, at: At) -> IntArray:  # noqa: ARG002 - the text is known
        """[k] the recorded tokens at the positions."""
        pairs = zip(at.request.tolist(), at.position.tolist(), strict=True)
        return np.asarray([self._token(self._texts[request], place) for request, place in pairs], dtype=np.int64)

    def accept(self, prob: Any, at: At) -> Any:  # noqa: ARG002 - never asked
        """Never asked: law-exact rules need the target's laws, which a record does not hold."""
        raise UnsupportedError("a recorded text can be replayed under the rule match only; run a model for the others.")

    def draw(self, law: Any, at: At) -> IntArray:  # noqa: ARG002 - never asked
        """Never asked, for the same reason."""
        raise UnsupportedError("a recorded text can be replayed under the rule match only; run a model for the others.")

    @staticmethod
    def _token(text: Sequence[int], place: int) -> int:
        return text[place] if place < len(text) else BEYOND


def runner_ups(
    top: Sequence[Sequence[int]], first: int, tokens: Sequence[int], path: Sequence[int], count: int
) -> tuple[IntArray, IntArray]:
    """What a drafter that reads the target's most probable tokens can be shown of a step.

    Args:
        top: for each output token the most probable tokens there.
        first: number of the output token that the step's root drew.
        tokens: [rows] the token fed at each judged row: the last committed token, then every draft node.
        path: rows on the recorded text, in order: 0, then those of the accepted nodes.
        count: how many the drafter wants.

    Returns:
        [rows, count] most probable tokens and [rows] tokens fed. What the target would have said after a refused draft
        token is not known: such rows repeat the first one, so that the others stand where they stand in a live run.
    """
    shown, fed = [top[first][:count]] * len(tokens), [tokens[0]] * len(tokens)
    for offset, row in enumerate(path):
        if first + offset < len(top):
            shown[row], fed[row] = top[first + offset][:count], tokens[row]
    return np.asarray(shown, dtype=np.int64), np.asarray(fed, dtype=np.int64)
