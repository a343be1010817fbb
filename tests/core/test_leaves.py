"""Trees of a batch that are judged together by TRAVERSAL, each as if it were alone."""

import numpy as np

from outrider.bench.toys import PROMPT, Toy, ToyLaws, draw_tree
from outrider.core.coins import BatchCoins, Stream
from outrider.core.params import Draw, Rule
from outrider.core.types import Proposal
from outrider.core.verify import verify

SHAPES = [(), (1,), (2, 2), (1, 1, 1), (3, 1), (1, 2)]


def test_trees_of_all_shapes_end_as_they_would_alone():
    """Requests that stop early, or have nothing drafted, go on with others that are still deep in their trees."""
    target, drafter = Toy(3, 5), Toy(4, 5)
    streams = [Stream(seed, 1) for seed in range(60)]
    trees = [
        draw_tree(stream, drafter, shape, Draw.DETERMINISTIC if number % 3 == 0 else Draw.WITHOUT_REPLACEMENT)
        if (shape := SHAPES[number % len(SHAPES)])
        else Proposal.empty()
        for number, stream in enumerate(streams)
    ]
    positions = [len(PROMPT)] * len(trees)
    together = verify([Rule.TRAVERSAL] * len(trees), ToyLaws(target, trees), trees, BatchCoins(streams), positions)
    for number, tree in enumerate(trees):
        one = verify([Rule.TRAVERSAL], ToyLaws(target, [tree]), [tree], BatchCoins([streams[number]]), positions[:1])
        assert one == [together[number]]
    assert {len(result.nodes) for result in together} >= {0, 1, 2}
    assert {result.ended for result in together} == {"bonus", "correction"}


def test_a_missing_law_ends_its_own_request_only():
    target, drafter = Toy(1), Toy(2)
    streams = [Stream(seed, 0) for seed in range(40)]
    trees = [draw_tree(stream, drafter, (2, 1), Draw.WITHOUT_REPLACEMENT) for stream in streams]

    class Broken(ToyLaws):
        def at(self, requests, nodes):
            rows = super().at(requests, nodes)
            return np.where((requests == 7)[:, None], np.nan, rows)

    judge = lambda laws: verify([Rule.TRAVERSAL] * 40, laws, trees, BatchCoins(streams), [len(PROMPT)] * 40)  # noqa: E731
    whole, broken = judge(ToyLaws(target, trees)), judge(Broken(target, trees))
    assert (broken[7].nodes, broken[7].next_token, broken[7].ended) == ((), -1, "invalid")
    assert [a for n, a in enumerate(whole) if n != 7] == [b for n, b in enumerate(broken) if n != 7]
