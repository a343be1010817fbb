"""A toy target and a toy drafter whose every law is known, behind the shipped processing chain, in float64.

Laws are noise keyed by the text, so no two paths have the same one. This module knows no rule and no engine. Invariant:
the same seed gives the same laws everywhere.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.analysis.enumerate import Text
from outrider.core.growth import Place
from outrider.core.params import Draw, SamplingParams
from outrider.core.process import History, Processor
from outrider.core.steps import Steps
from outrider.core.tree import path
from outrider.core.types import Proposal
from outrider.models.table import TokenCache

__all__ = ["PROMPT", "Toy", "ToyLaws", "ToyTarget", "draw_tree"]

PROMPT = (1, 0)
"""The prompt before every toy text."""

_SCALE = 1.5


class Toy:
    """A model whose logits are noise keyed by the text.

    Args:
        seed: of the noise.
        vocab_size: number of tokens.
        params: the processing chain.
        committed: output tokens that stand already.
        end_ids: tokens that end a text; banned before `min_tokens`.
    """

    def __init__(
        self, seed: int, vocab_size: int, params: SamplingParams, committed: Text = (), end_ids: Sequence[int] = ()
    ) -> None:
        self.seed, self.vocab_size, self.params = seed, vocab_size, params
        self.processor = Processor(params, vocab_size, end_ids)
        self.history = History(PROMPT)
        self.history.extend(committed)
        self._laws: dict[Text, NDArray[np.float64]] = {}

    def logits(self, text: Text) -> NDArray[np.float64]:
        """[V] logits after committed tokens and a path."""
        text = (*self.history.output, *text)
        return _SCALE * np.random.default_rng([self.seed, *text]).normal(size=self.vocab_size)

    def law(self, text: Text) -> NDArray[np.float64]:
        """[V] the law after a path."""
        if text not in self._laws:
            state = self.processor.start(self.history)
            for token in text:
                state = state.child(token)
            self._laws[text] = np.asarray(self.processor.law(self.logits(text)[None, :], [state])[0])
        return self._laws[text]


class ToyLaws:
    """`Laws` of a toy target for one proposal."""

    def __init__(self, target: Toy, proposal: Proposal) -> None:
        self._target, self._proposal = target, proposal

    def at(self, requests: Any, nodes: Any) -> Any:  # noqa: ARG002 - the protocol's
        """[k, V] laws after nodes."""
        proposal = self._proposal
        paths = [path(proposal.parents, node) for node in nodes.tolist()]
        return np.stack([self._target.law(tuple(int(proposal.tokens[n]) for n in nodes)) for nodes in paths])


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


def draw_tree(coins: Any, drafter: Toy, widths: Sequence[int], draw: Draw, steps: Steps) -> Proposal:
    """A tree with `widths[d]` children a node at depth d, drawn from the drafter's laws."""
    tokens: list[int] = []
    parents: list[int] = []
    draws: list[int] = []
    confidence: list[float] = []
    rows: list[Any] = []
    frontier: list[tuple[int, Text]] = [(-1, ())]
    for width in widths:
        following = []
        for parent, text in frontier:
            law, position = drafter.law(text), len(PROMPT) + len(drafter.history.output) + len(text)
            drawn = steps.draw_children(coins, law, Place(parent, position), width, draw)
            if drawn.tokens:
                rows.append(law if drawn.law is None else drawn.law)
            for token, kind in zip(drawn.tokens, drawn.kinds, strict=True):
                following.append((len(tokens), (*text, token)))
                tokens.append(token)
                parents.append(parent)
                draws.append(int(kind))
                confidence.append(float(law[token]))
        frontier = following
    return Proposal(
        tokens=np.asarray(tokens, dtype=np.int64),
        parents=np.asarray(parents, dtype=np.int64),
        draw=np.asarray(draws, dtype=np.int64),
        source=("toy",) * len(tokens),
        confidence=np.minimum(1.0, confidence),
        probs=None if draw is Draw.DETERMINISTIC else np.stack(rows),
    )
