"""Speculation with trees on a target that is no language model: a composer of melodies.

The target writes notes of a scale; its law looks at the last three notes and likes small steps and repeats of a motif.
A worse composer, which looks at one note only, drafts for it, and the tree of its guesses is judged by the rule of your
choice: the core alone, without engine or cache. Run it: `python examples/melody.py`.
"""

import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.core.coins import BatchCoins, DraftCoins, Stream
from outrider.core.fit import default_draw
from outrider.core.growth import Place, draw_children
from outrider.core.params import Draw, Rule
from outrider.core.tree import path
from outrider.core.types import IntArray, Proposal
from outrider.core.verify import verify

NOTES = ("c", "d", "e", "f", "g", "a", "b")
Law = NDArray[np.float64]
Tune = tuple[int, ...]


def composer(tune: Sequence[int]) -> Law:
    """[notes] the target's law of the next note."""
    steps = np.abs(np.arange(len(NOTES)) - tune[-1])
    liking = -0.9 * steps.astype(np.float64)
    liking[tune[-3 if len(tune) > 2 else 0]] += 1.2  # come back to the motif
    liking[[0, 2, 4]] += 0.6  # the chord
    return np.exp(liking) / np.exp(liking).sum()


def pupil(tune: Sequence[int]) -> Law:
    """[notes] the draft's law: small steps, and no memory."""
    liking = -0.8 * np.abs(np.arange(len(NOTES)) - tune[-1]).astype(np.float64)
    return np.exp(liking) / np.exp(liking).sum()


class TuneLaws:
    """The composer's laws at the nodes of one tree; implements `core.walks.Laws`."""

    def __init__(self, tune: Tune, proposal: Proposal) -> None:
        self._tune, self._proposal = tune, proposal

    def at(self, requests: IntArray, nodes: IntArray) -> Law:  # noqa: ARG002 - there is one request
        """[k, notes] laws of the note after each node."""
        return np.stack([composer((*self._tune, *self._notes(int(node)))) for node in nodes])

    def _notes(self, node: int) -> list[int]:
        return [int(self._proposal.tokens[above]) for above in path(self._proposal.parents, node)]


def draft(tune: Tune, coins: DraftCoins, draw: Draw, widths: Sequence[int]) -> Proposal:
    """A tree of the pupil's guesses, `widths[d]` notes after each at depth d."""
    tokens: list[int] = []
    parents: list[int] = []
    kinds: list[int] = []
    laws: list[Law] = []
    frontier: list[tuple[int, Tune]] = [(-1, tune)]
    for width in widths:
        following: list[tuple[int, Tune]] = []
        for parent, so_far in frontier:
            law = pupil(so_far)
            drawn = draw_children(coins, law, Place(parent, len(so_far)), width, draw)
            laws.append(law if drawn.law is None else drawn.law)
            for note, kind in zip(drawn.tokens, drawn.kinds, strict=True):
                following.append((len(tokens), (*so_far, note)))
                tokens.append(note)
                parents.append(parent)
                kinds.append(int(kind))
        frontier = following
    return Proposal(
        tokens=np.asarray(tokens, dtype=np.int64),
        parents=np.asarray(parents, dtype=np.int64),
        draw=np.asarray(kinds, dtype=np.int64),
        source=("pupil",) * len(tokens),
        confidence=np.ones(len(tokens)),
        probs=np.stack(laws) if laws and draw not in (Draw.SHARED_NOISE, Draw.DETERMINISTIC) else None,
    )


def one_pass(tune: Tune, rule: Rule, stream: Stream, widths: Sequence[int], coins: object = None) -> Tune:
    """Notes that one pass of the composer gives; `coins` may stand in for the stream's own, as in a test."""
    noise = stream if coins is None else coins
    proposal = draft(tune, noise, default_draw(rule, is_tree=max(widths, default=1) > 1), widths)  # type: ignore[arg-type]
    judge = BatchCoins([stream]) if coins is None else coins
    (result,) = verify([rule], TuneLaws(tune, proposal), [proposal], judge, [len(tune)])  # type: ignore[arg-type]
    return (*(int(proposal.tokens[node]) for node in result.nodes), result.next_token)


def compose(length: int, rule: Rule, seed: int, widths: Sequence[int]) -> tuple[Tune, int]:
    """A tune of so many notes, and the passes that it took; no widths is plain composing."""
    tune: Tune = (0,)
    passes = 0
    while len(tune) < length:
        tune += one_pass(tune, rule, Stream(seed, passes), widths)
        passes += 1
    return tune[:length], passes


def main() -> None:
    """Compose with every exact rule."""
    for rule in (Rule.MATCH, Rule.TOKEN, Rule.BLOCK, Rule.TRAVERSAL):
        widths = (1, 1, 1) if rule is Rule.BLOCK else (3, 2, 1)
        tune, passes = compose(64, rule, 4, widths)
        sys.stdout.write(
            f"{rule.value:9} {passes} passes for 63 notes: {' '.join(NOTES[note] for note in tune[:24])} ...\n"
        )


if __name__ == "__main__":
    main()
