"""Trees that were cut by their shape are still judged exactly, and proposals that no rule can judge are told apart."""

import numpy as np
import pytest
import torch
from toy import bias

from outrider.bench.toys import Toy, draw_tree
from outrider.core.params import Draw, Rule
from outrider.core.tree import subset, with_ancestors
from outrider.core.types import Proposal
from outrider.core.verify import check_fit


@pytest.mark.parametrize("draw", [Draw.DETERMINISTIC, Draw.IID, Draw.WITHOUT_REPLACEMENT, Draw.TOP_PLUS_SAMPLE])
@pytest.mark.parametrize("count", range(4))
@pytest.mark.parametrize("widths", [(3,), (2, 1)])
def test_a_tree_cut_to_its_first_nodes_keeps_the_law(draw, count, widths):
    target, drafter = Toy(5), Toy(6)

    def cut(coins):
        whole = draw_tree(coins, drafter, widths, draw)
        return subset(whole, range(min(count, whole.num_nodes)))

    assert bias(target, cut, Rule.TOKEN, 3) < 1e-14


def test_companions_of_a_sample_that_was_cut_are_deterministic():
    draw = np.full(3, int(Draw.TOP_PLUS_SAMPLE))
    tree = Proposal(np.arange(3), np.full(3, -1), draw, ("a",) * 3, np.ones(3), np.ones((1, 4)) / 4)
    assert subset(tree, [0, 1]).draw.tolist() == [Draw.DETERMINISTIC] * 2
    assert subset(tree, [1, 2]).draw.tolist() == [Draw.TOP_PLUS_SAMPLE] * 2


def test_ancestors_are_added():
    parents = np.array([-1, 0, 1, -1, 3])
    assert with_ancestors(parents, [2, 4]).tolist() == [0, 1, 2, 3, 4]
    assert with_ancestors(parents, [4]).tolist() == [3, 4]
    assert with_ancestors(parents, []).tolist() == []


@pytest.mark.parametrize(
    "proposal",
    [
        Proposal.chain([1], source="a", draw=Draw.SHARED_NOISE),
        Proposal.chain([1], source="a", draw=Draw.IID),
        Proposal.chain([1, 2], source="a", draw=Draw.IID, probs=np.ones((1, 4)) / 4),
        Proposal(np.arange(2), np.full(2, -1), np.array([2, 3]), ("a",) * 2, np.ones(2), np.ones((1, 4)) / 4),
    ],
    ids=["noise of MATCH", "no laws", "too few laws", "two kinds of sampling"],
)
def test_what_token_cannot_judge_is_told_before_any_law_is_pulled(proposal):
    with pytest.raises(ValueError, match=r"noise|laws|several ways"):
        check_fit(Rule.TOKEN, proposal)
    check_fit(Rule.MATCH, proposal)


@pytest.mark.parametrize("mixed", [lambda p: torch.from_numpy(p), lambda p: p], ids=["torch laws", "NumPy laws"])
def test_the_draft_s_laws_may_be_of_another_kind_than_the_target_s(mixed):
    from outrider.core.coins import BatchCoins, Stream
    from outrider.core.verify import verify

    class Laws:
        def at(self, requests, nodes):
            return torch.full((len(requests), 4), 0.25, dtype=torch.float64)

    probs = np.array([[0.1, 0.2, 0.3, 0.4]])
    proposal = Proposal.chain([2], source="a", draw=Draw.IID, probs=mixed(probs))
    (result,) = verify([Rule.TOKEN], Laws(), [proposal], BatchCoins([Stream(1, 0)]), [5])
    assert result.ended in ("bonus", "correction")
