"""A toy target and a toy drafter whose every law is known, behind the shipped processing chain, in float64.

Laws are noise keyed by the text, so no two paths have the same one. This module knows no rule and no engine. Invariant:
the same seed gives the same laws everywhere.
"""

from collections.abc import Callable, Sequence
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.analysis.enumerate import Text
from outrider.core.arrays import to_numpy
from outrider.core.growth import Place
from outrider.core.params import Draw, SamplingParams
from outrider.core.process import History, Processor
from outrider.core.steps import STEPS, Steps
from outrider.core.tree import path
from outrider.core.types import Proposal, VerifyResult
from outrider.models.table import TokenCache

__all__ = ["PROMPT", "Toy", "ToyLaws", "ToyTarget", "draw_tree", "emitted"]

PROMPT = (1, 0)
"""The prompt before every toy text."""


class Toy:
    """A model whose logits are noise keyed by the text.

    Args:
        seed: of the noise.
        vocab_size: number of tokens.
        params: the processing chain; left out, plain sampling at temperature 1.
        committed: output tokens that stand already.
        end_ids: tokens that end a text; banned before `min_tokens`.
        make: gives an array of the kind that the laws are made of, NumPy or torch, from a NumPy one.
        scale: of the noise; larger gives sharper laws.
    """

    def __init__(
        self,
        seed: int,
        vocab_size: int = 3,
        params: SamplingParams | None = None,
        *,
        committed: Text = (),
        end_ids: Sequence[int] = (),
        make: Callable[[Any], Any] = np.asarray,
        scale: float = 1.5,
    ) -> None:
        self.seed, self.vocab_size, self.make, self.scale = seed, vocab_size, make, scale
        self.processor = Processor(params or SamplingParams(temperature=1.0), vocab_size, end_ids)
        self.history = History(PROMPT)
        self.history.extend(committed)
        self._laws: dict[Text, Any] = {}

    def logits(self, text: Text) -> NDArray[np.float64]:
        """[V] logits after committed tokens and a path."""
        text = (*self.history.output, *text)
        return self.scale * np.random.default_rng([self.seed, *text]).normal(size=self.vocab_size)

    def law(self, text: Text) -> Any:
        """[V] the law after a path."""
        if text not in self._laws:
            state = self.processor.start(self.history)
            for token in text:
                state = state.child(token)
            self._laws[text] = self.processor.law(self.make(self.logits(text)[None, :]), [state])[0]
        return self._laws[text]

    def numpy_law(self, text: Text) -> NDArray[np.float64]:
        """[V] the law after a path, as a NumPy array."""
        return to_numpy(self.law(text))


class ToyLaws:
    """`Laws` of a toy target for proposals.

    Attributes:
        pulled: (request, node) of every law that was asked for.
    """

    def __init__(self, target: Toy, proposals: Sequence[Proposal]) -> None:
        self._target, self._proposals = target, proposals
        self.pulled: list[tuple[int, int]] = []

    def at(self, requests: NDArray[np.int64], nodes: NDArray[np.int64]) -> Any:
        """[k, V] laws after nodes."""
        asked = list(zip(requests.tolist(), nodes.tolist(), strict=True))
        self.pulled += asked
        rows = [self._target.law(self._text(self._proposals[request], node)) for request, node in asked]
        if isinstance(rows[0], np.ndarray):
            return np.stack(rows)
        import torch

        return torch.stack(rows)

    @staticmethod
    def _text(proposal: Proposal, node: int) -> Text:
        return tuple(int(proposal.tokens[above]) for above in path(proposal.parents, node))


class ToyTarget:
    """A toy as a `Target` that rows can be asked of: the shipped draft model runs on it."""

    weight_bytes = 0
    context_length = 64

    def __init__(self, toy: Toy) -> None:
        self._toy, self.vocab_size = toy, toy.vocab_size

    def make_cache(self, max_tokens: int | None = None) -> TokenCache:
        """A cache of tokens."""
        return TokenCache(max_tokens)

    def forward(self, inputs: Any, tokens: Any) -> Any:
        """Logits of rows, in float64."""
        import torch

        rows: dict[int, NDArray[np.float64]] = {}
        for segment in inputs.segments:
            tokens.write(segment.slot, segment.num_cached, inputs.token_ids[segment.start :][: segment.num_rows])
            stored, parents = tokens.tokens(segment.slot), segment.parents
            base = len(stored) - (0 if parents is None else len(parents))
            for row in range(segment.num_rows):
                place = segment.num_cached + row
                ids = [*range(place + 1)]
                if place >= base:
                    ids = [*range(base), *(base + node for node in path(parents, place - base))]
                rows[segment.start + row] = self._toy.logits(tuple(stored[ids][len(PROMPT) :].tolist()))
        wanted = [rows[row] for row in inputs.logits_rows.tolist()]
        return SimpleNamespace(logits=torch.from_numpy(np.stack(wanted)), hidden={}, seconds=0.0)


def draw_tree(
    coins: Any, drafter: Toy, widths: Sequence[int | Sequence[int]], draw: Draw, steps: Steps = STEPS
) -> Proposal:
    """A tree drawn from the drafter's laws.

    Args:
        coins: the draft's chance.
        drafter: its laws.
        widths: children of a node at each depth; or of each node of that depth in turn, over again where there are
            more nodes.
        draw: how children are drawn.
        steps: the steps of drafting.
    """
    tokens: list[int] = []
    parents: list[int] = []
    draws: list[int] = []
    confidence: list[float] = []
    rows: list[Any] = []
    frontier: list[tuple[int, Text]] = [(-1, ())]
    for width in widths:
        following = []
        counts = (width,) if isinstance(width, int) else width
        for (parent, text), count in zip(frontier, cycle(counts), strict=False):
            if not count:
                continue
            law, position = drafter.numpy_law(text), len(PROMPT) + len(drafter.history.output) + len(text)
            drawn = steps.draw_children(coins, law, Place(parent, position), count, draw)
            if drawn.tokens:
                rows.append(law if drawn.law is None else drawn.law)
            for token, kind in zip(drawn.tokens, drawn.kinds, strict=True):
                following.append((len(tokens), (*text, token)))
                tokens.append(token)
                parents.append(parent)
                draws.append(int(kind))
                confidence.append(float(law[token]))
        frontier = following
    probs = np.stack(rows) if rows else np.zeros((0, drafter.vocab_size))
    return Proposal(
        tokens=np.asarray(tokens, dtype=np.int64),
        parents=np.asarray(parents, dtype=np.int64),
        draw=np.asarray(draws, dtype=np.int64),
        source=("toy",) * len(tokens),
        confidence=np.minimum(1.0, confidence),
        probs=None if draw is Draw.DETERMINISTIC else drafter.make(probs),
    )


def emitted(proposal: Proposal, result: VerifyResult) -> Text:
    """The tokens that a judged proposal gives."""
    return (*(int(proposal.tokens[node]) for node in result.nodes), int(result.next_token))
