"""Models whose state cannot be cut back, by checkpoint and replay.

A recurrent or hybrid model folds its text into a state, and a rejected token cannot be taken out of it. So a slot keeps
the tokens that it holds and the states at two lengths: before the last pass and after it. A cut goes back to the last
state that is not too long; the tokens behind it are replayed at the beginning of the next pass. A tree is read path by
path, each from a copy of the state. This module knows slots and tokens; it knows neither requests nor files.

Invariants: a state that is kept is never written to again, passes run on copies; whatever a slot is cut to, its state
is that of exactly the tokens that are left, at worst by reading them all anew.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from outrider.cache.base import Cache
from outrider.core.tree import is_chain, path
from outrider.errors import UnsupportedModelError
from outrider.models.base import ForwardInputs, ForwardOutputs, Segment
from outrider.models.checking import check_pass
from outrider.models.transformers_model import CausalModel, LibraryTarget
from outrider.models.transformers_state import Checkpoint, StateCache, fork

__all__ = ["ReplayTarget"]


class ReplayTarget(LibraryTarget):
    """A model that runs on the library's cache, one slot at a time; implements `models.base.Target`.

    Args:
        model: the model.
        longest: positions that it was made for.

    Attributes:
        reads_chunks: whether several tokens may follow a state in one pass; some families only take one.
    """

    rollback = "replay"

    def __init__(self, model: CausalModel, longest: int) -> None:
        super().__init__(model, longest)
        self.reads_chunks = False
        with torch.inference_mode():
            self._vocab_size = self._run(self._start(), 0, [0], [0]).shape[1]

    def make_cache(self, max_tokens: int | None = None) -> StateCache:
        """Give an empty cache for this model.

        Args:
            max_tokens: tokens over all slots that the cache may hold; None for no bound but memory.
        """
        return StateCache(max_tokens)

    def forward(self, inputs: ForwardInputs, cache: Cache) -> ForwardOutputs:
        """Run one pass, slot by slot; the cache keeps the states before and after it.

        Raises:
            CacheFullError: the rows of a segment were not reserved.
            ValueError: the inputs contradict each other or the cache.
            UnsupportedModelError: hidden states or a part of the layers were asked for.
        """
        started = time.perf_counter()
        if not isinstance(cache, StateCache):
            raise ValueError(f"this target needs a cache of its own make_cache, got {type(cache).__name__}")
        check_pass(inputs, cache)
        if inputs.hidden_layers or inputs.stop_after is not None:
            raise UnsupportedModelError(
                f"{self._model.name} runs by checkpoint and replay and shows no hidden layers; "
                "use a drafter that needs none."
            )
        logits = torch.empty(len(inputs.logits_rows), self.vocab_size, device=self.device)
        with torch.inference_mode():
            for segment in inputs.segments:
                self._read(segment, inputs, cache, logits)
        if self.device.type != "cpu":
            torch.cuda.synchronize(self.device)
        return ForwardOutputs(logits, {}, time.perf_counter() - started)

    def _read(self, segment: Segment, inputs: ForwardInputs, cache: StateCache, logits: torch.Tensor) -> None:
        """One slot's rows: what has to be replayed, then the chain, then a tree's paths."""
        fed = [int(token) for token in inputs.token_ids[segment.start : segment.start + segment.num_rows]]
        parents = None if segment.parents is None or is_chain(segment.parents) else segment.parents
        num_chain = segment.num_rows - (0 if parents is None else len(parents))
        before = self._caught_up(segment, cache)
        state = fork(before.state)
        places = _places(inputs.logits_rows, segment)  # row of the segment -> row of the logits
        self._fill(logits, places, state, before.length, fed[:num_chain], range(num_chain))
        after = Checkpoint(before.length + num_chain, state)
        if parents is not None:
            self._read_paths(after, parents, fed[num_chain:], num_chain, places, logits)
        cache.extend(segment.slot, fed, [before, after] if before.length else [after])

    def _caught_up(self, segment: Segment, cache: StateCache) -> Checkpoint:
        """The state after the slot's cached tokens; those behind its last state are replayed."""
        known = cache.last(segment.slot) or Checkpoint(0, self._start())
        pending = cache.tokens(segment.slot)[known.length :]
        if not pending:
            return known
        state = fork(known.state)
        self._run(state, known.length, pending, [])
        return Checkpoint(segment.num_cached, state)

    def _read_paths(
        self,
        root: Checkpoint,
        parents: np.ndarray,
        tokens: Sequence[int],
        first: int,
        places: dict[int, int],
        logits: torch.Tensor,
    ) -> None:
        """Each path from the root to a leaf, from a copy of the root's state."""
        for leaf in sorted(set(range(len(parents))) - set(parents.tolist())):
            line = path(parents, leaf)
            rows = [first + node for node in line]
            self._fill(logits, places, fork(root.state), root.length, [tokens[node] for node in line], rows)

    def _fill(
        self,
        logits: torch.Tensor,
        places: dict[int, int],
        state: Any,
        length: int,
        tokens: Sequence[int],
        rows: Sequence[int],
    ) -> None:
        """Advance a state by tokens that stand in these rows of the segment, and note the logits that are wanted."""
        wanted = [number for number, row in enumerate(rows) if row in places]
        found = self._run(state, length, tokens, wanted)
        for number, scores in zip(wanted, found, strict=True):
            logits[places[rows[number]]] = scores

    def _run(self, state: Any, length: int, tokens: Sequence[int], wanted: Sequence[int]) -> torch.Tensor:
        """[len(wanted), V] logits after some of the tokens; the state is advanced by all of them."""
        ids = torch.tensor(tokens, device=self.device)
        positions = torch.arange(length, length + len(tokens), device=self.device)
        if length == 0 or self.reads_chunks:
            return self._model.run(ids, positions, state, torch.tensor(wanted, dtype=torch.int64, device=self.device))
        kept = torch.empty(len(wanted), self._vocab_size, device=self.device)
        places = {number: place for place, number in enumerate(wanted)}
        zero = torch.zeros(1, dtype=torch.int64, device=self.device)
        for number in range(len(tokens)):
            row = zero if number in places else zero[:0]
            scores = self._model.run(ids[number : number + 1], positions[number : number + 1], state, row)
            if number in places:
                kept[places[number]] = scores[0]
        return kept

    def _start(self) -> Any:
        """The state of an empty text."""
        from transformers import DynamicCache

        return DynamicCache(config=self._model.model.config)


def _places(logits_rows: np.ndarray, segment: Segment) -> dict[int, int]:
    """Row of the segment -> row of the logits."""
    end = segment.start + segment.num_rows
    return {int(row) - segment.start: place for place, row in enumerate(logits_rows) if segment.start <= row < end}
