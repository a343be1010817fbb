"""Chains of a batch that are judged together by BLOCK, each as if it were alone."""

import numpy as np

from outrider.bench.toys import Toy, ToyLaws, draw_tree
from outrider.core.coins import BatchCoins, Stream
from outrider.core.params import Draw, Rule
from outrider.core.types import Proposal
from outrider.core.verify import verify


def test_chains_of_all_lengths_end_as_they_would_alone():
    target, drafter = Toy(5, 4), Toy(6, 4)
    streams = [Stream(40 + number, number) for number in range(60)]
    chains = [
        draw_tree(stream, drafter, (1,) * (number % 5), (Draw.IID, Draw.DETERMINISTIC)[number % 2])
        for number, stream in enumerate(streams)
    ]
    chains[3] = Proposal.empty()
    positions = [10 + number for number in range(60)]
    together = verify([Rule.BLOCK] * 60, ToyLaws(target, chains), chains, BatchCoins(streams), positions)
    for number, chain in enumerate(chains):
        laws, coins = ToyLaws(target, [chain]), BatchCoins([streams[number]])
        (alone,) = verify([Rule.BLOCK], laws, [chain], coins, [positions[number]])
        assert together[number] == alone
    assert {len(result.nodes) for result in together} >= {0, 1, 2}
    assert {result.ended for result in together} == {"bonus", "correction"}


def test_a_broken_law_ends_its_own_chain_only():
    class Broken(ToyLaws):
        def at(self, requests, nodes):
            laws = np.array(super().at(requests, nodes))
            laws[requests == 1] = np.nan
            return laws

    target = Toy(5, 4)
    chains = [Proposal.chain([int(np.argmax(target.law(())))], source="toy") for _ in range(3)]
    coins = BatchCoins([Stream(number, 0) for number in range(3)])
    results = verify([Rule.BLOCK] * 3, Broken(target, chains), chains, coins, [4, 4, 4])
    assert [result.ended == "invalid" for result in results] == [False, True, False]
    assert results[1].next_token == -1
