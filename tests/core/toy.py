"""Toy target and drafter for the tests of the rules: every law is a function of the whole path."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from outrider.analysis.enumerate import EnumeratingCoins, Text, complete, enumerate_law, largest_difference, text_law
from outrider.core.growth import Place
from outrider.core.params import Draw, Rule, SamplingParams
from outrider.core.process import History, Processor
from outrider.core.steps import STEPS, Steps
from outrider.core.tree import path
from outrider.core.types import Proposal
from outrider.core.verify import verify

PROMPT = (1, 0)


class Toy:
    """A model whose logits are noise keyed by the text, behind a real processing chain."""

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

    def logits(self, text: Text) -> np.ndarray:
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

    def numpy_law(self, text: Text) -> np.ndarray:
        return np.asarray(self.law(text))


class TreeLaws:
    """`Laws` of one toy target for several proposals; counts what was pulled."""

    def __init__(self, target: Toy, proposals: Sequence[Proposal]) -> None:
        self.target, self.proposals = target, proposals
        self.pulled: list[tuple[int, int]] = []

    def at(self, requests: np.ndarray, nodes: np.ndarray) -> Any:
        rows = []
        for request, node in zip(requests.tolist(), nodes.tolist(), strict=True):
            proposal = self.proposals[request]
            self.pulled.append((request, node))
            rows.append(self.target.law(tuple(int(proposal.tokens[n]) for n in path(proposal.parents, node))))
        if isinstance(rows[0], np.ndarray):
            return np.stack(rows)
        import torch

        return torch.stack(rows)


def draft_tree(coins: Any, drafter: Toy, widths: Sequence[int], draw: Draw, steps: Steps = STEPS) -> Proposal:
    """A tree with `widths[d]` children a node at depth d, drawn from the drafter's laws."""
    tokens: list[int] = []
    parents: list[int] = []
    draws: list[int] = []
    confidence: list[float] = []
    rows: list[np.ndarray] = []
    frontier: list[tuple[int, Text]] = [(-1, ())]
    for width in widths:
        following = []
        for parent, text in frontier:
            law, position = np.asarray(drafter.law(text)), len(PROMPT) + len(drafter.history.output) + len(text)
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
    probs = np.stack(rows) if rows else np.zeros((0, drafter.vocab_size))
    return Proposal(
        tokens=np.asarray(tokens, dtype=np.int64),
        parents=np.asarray(parents, dtype=np.int64),
        draw=np.asarray(draws, dtype=np.int64),
        source=("toy",) * len(tokens),
        confidence=np.minimum(1.0, confidence),
        probs=None if draw == Draw.DETERMINISTIC else drafter.make(probs),
    )


def emitted(proposal: Proposal, result: Any) -> Text:
    return (*(int(proposal.tokens[node]) for node in result.nodes), int(result.next_token))


def round_law(target: Toy, make: Callable[[Any], Proposal], rule: Rule, steps: Steps = STEPS) -> dict[Text, float]:
    """The exact law of what one judged pass emits, draft draws included."""

    def one_pass(coins: EnumeratingCoins) -> Text:
        proposal = make(coins)
        (result,) = verify([rule], TreeLaws(target, [proposal]), [proposal], coins, [len(PROMPT)], steps)
        return emitted(proposal, result)

    return enumerate_law(one_pass)


def bias(target: Toy, make: Callable[[Any], Proposal], rule: Rule, length: int, steps: Steps = STEPS) -> float:
    """The largest difference from plain decoding over all texts of `length` tokens; 0 for an exact rule."""
    got = complete(round_law(target, make, rule, steps), target.numpy_law, length)
    return largest_difference(got, text_law(target.numpy_law, length))
