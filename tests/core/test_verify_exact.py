"""The emitted law is the target's, by enumeration of every coin on the lines that serve."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import bias, round_law

from outrider.analysis.enumerate import largest_difference
from outrider.analysis.faults import HONEST
from outrider.bench.enumeration import FITS, PROCESSED, all_checks, run_check
from outrider.bench.toys import Toy, draw_tree
from outrider.core.params import Draw, Rule, SamplingParams
from outrider.core.types import Proposal
from strategies import proposals, sampling_params, tree_shapes

CHECKS = {str(check): check for rule in Rule if rule.is_exact for check in all_checks(rule)}
SAMPLED = (Draw.IID, Draw.WITHOUT_REPLACEMENT, Draw.TOP_PLUS_SAMPLE)
PAIRS = [(rule, draw) for rule, draws in FITS.items() if rule.is_exact for draw in draws]


@pytest.mark.parametrize("name", CHECKS)
def test_the_emitted_law_is_the_target_s(name):
    """SD-08, SD-18, SD-19, AX-18: vllm-project/vllm#18902, sgl-project/sglang PR 33643."""
    assert run_check(CHECKS[name], HONEST) < 1e-14


SMALL = [name for name, check in CHECKS.items() if check.passes == 1 and check.length < 4 and check.widths != (2, 2)]


@pytest.mark.parametrize("name", SMALL)
def test_the_emitted_law_is_the_target_s_on_tensors_too(make_tensor, name):
    assert run_check(CHECKS[name], HONEST, make_tensor) < 1e-14


@pytest.mark.parametrize("committed", [(), (2, 2)])
@pytest.mark.parametrize("draw", [Draw.DETERMINISTIC, *SAMPLED])
def test_token_rule_keeps_path_dependent_laws_behind_a_text(make, draw, committed):
    """SD-18, SD-19, AX-18: vllm-project/vllm#18902, sgl-project/sglang PR 33643."""
    target = Toy(5, 4, PROCESSED, committed=committed, end_ids=(3,), make=make)
    drafter = Toy(6, 4, SamplingParams(temperature=1.0, top_k=3), committed=committed, make=make)
    widths = (2, 1) if draw == Draw.DETERMINISTIC else (1, 1)
    assert bias(target, lambda coins: draw_tree(coins, drafter, widths, draw), Rule.TOKEN, 4) < 1e-14


@pytest.mark.parametrize("committed", [(), (2, 2)])
def test_match_rule_keeps_path_dependent_laws(make, committed):
    target = Toy(5, 4, PROCESSED, committed=committed, end_ids=(3,), make=make)
    drafter = Toy(6, 4, committed=committed, make=make)
    assert bias(target, lambda coins: draw_tree(coins, drafter, (2, 2), Draw.DETERMINISTIC), Rule.MATCH, 4) < 1e-14


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("top_p", [1.0, 0.7])
@pytest.mark.parametrize("top_k", [0, 2])
def test_target_settings_reach_every_row(temperature, top_p, top_k):
    """SD-06: vllm-project/vllm PR 10198, ohdearquant/lattice PR 974. A plain drafter; the support is the nucleus."""
    target = Toy(7, params=SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k))
    drafter = Toy(8)
    for draw in (Draw.IID, Draw.TOP_PLUS_SAMPLE):
        assert bias(target, lambda coins, d=draw: draw_tree(coins, drafter, (2, 1), d), Rule.TOKEN, 3) < 1e-14


@given(st.data())
def test_every_rule_keeps_every_law(data):
    """Random laws, processors, shapes and draws, chains and trees."""
    params = data.draw(sampling_params(3))
    seeds = data.draw(st.tuples(st.integers(0, 999), st.integers(0, 999)))
    rule, draw = data.draw(st.sampled_from(PAIRS))
    chains, trees = [(1,), (1, 1), (1, 1, 1)], [(2,), (3,), (2, 1), (1, 2)]
    widths = data.draw(st.sampled_from(chains if rule is Rule.BLOCK else chains + trees))
    target, drafter = Toy(seeds[0], 3, params, end_ids=(2,), scale=3.0), Toy(seeds[1], 3, scale=3.0)
    reached = round_law(target, lambda coins: draw_tree(coins, drafter, widths, draw), rule)
    if any(text[-1] < 0 for text in reached):  # somewhere every token is banned: nothing to compare
        return
    if any(np.isnan(target.numpy_law(text)).any() for text in reached):
        return
    length = min(len(text) for text in reached)
    assert bias(target, lambda coins: draw_tree(coins, drafter, widths, draw), rule, length) < 1e-12


@given(st.data())
def test_every_rule_keeps_every_law_on_ragged_trees(make_each, data):
    """Random trees whose nodes have any number of children, drawn in every way, on both kinds of arrays."""
    rule, draw = data.draw(st.sampled_from([pair for pair in PAIRS if pair[0] is not Rule.BLOCK]))
    shape = data.draw(tree_shapes())
    params = data.draw(sampling_params(3, temperatures=(0.3, 1.0, 2.0)))
    make, seed = data.draw(st.sampled_from(make_each)), data.draw(st.integers(0, 999))
    target = Toy(seed, 3, params, make=make, scale=2.0)
    drafter = Toy(seed + 1, 3, make=make, scale=2.0)
    reached = round_law(target, lambda coins: draw_tree(coins, drafter, shape, draw), rule)
    if any(text[-1] < 0 or np.isnan(target.numpy_law(text)).any() for text in reached):
        return  # somewhere every token is banned: nothing to compare
    assert bias(target, lambda coins: draw_tree(coins, drafter, shape, draw), rule, 3) < 1e-12


@given(proposals(3, 5), st.integers(0, 999), st.sampled_from([Rule.MATCH, Rule.TOKEN, Rule.TRAVERSAL]))
def test_all_rules_keep_the_law_for_any_deterministic_tree(proposal, seed, rule):
    """SD-08: apple/ml-recurrent-drafter#6, xLLM-AI/xllm PR 2175; SD-05: huggingface/transformers#32867."""
    assert bias(Toy(seed, scale=2.5), lambda coins: proposal, rule, 3) < 1e-12


@pytest.mark.parametrize(
    ("widths", "rules"),
    [((2, 2), [Rule.MATCH, Rule.TOKEN, Rule.TRAVERSAL]), ((1, 1, 1), [Rule.MATCH, Rule.TOKEN, Rule.BLOCK])],
)
def test_all_rules_emit_one_law_for_deterministic_drafts(widths, rules):
    """For drafts without chance MATCH is optimal, so the others can only equal it."""
    target, drafter = Toy(9), Toy(10)
    laws = [
        round_law(target, lambda coins: draw_tree(coins, drafter, widths, Draw.DETERMINISTIC), rule) for rule in rules
    ]
    for other in laws[1:]:
        assert largest_difference(laws[0], other) < 1e-14


def test_traversal_of_a_chain_is_the_block_rule():
    target, drafter = Toy(31), Toy(32)
    block = round_law(target, lambda coins: draw_tree(coins, drafter, (1, 1, 1), Draw.IID), Rule.BLOCK)
    tree = lambda coins: draw_tree(coins, drafter, (1, 1, 1), Draw.WITHOUT_REPLACEMENT)  # noqa: E731
    assert largest_difference(block, round_law(target, tree, Rule.TRAVERSAL)) < 1e-14


def test_the_approximate_rule_is_not_exact_and_says_so():
    target, drafter = Toy(21, 4), Toy(22, 4)
    tree = lambda coins: draw_tree(coins, drafter, (2, 1), Draw.DETERMINISTIC)  # noqa: E731
    assert bias(target, tree, Rule.TYPICAL, 3) > 1e-2
    assert [rule for rule in Rule if not rule.is_exact] == [Rule.TYPICAL]


@pytest.mark.parametrize("sampled", [Draw.IID, Draw.WITHOUT_REPLACEMENT, Draw.TOP_PLUS_SAMPLE])
def test_sampled_siblings_may_have_deterministic_companions(sampled):
    target, drafter = Toy(11, 4), Toy(12, 4)

    def mixed(coins):
        """One certain sibling before and one after the sample, the second chosen by the sample's value."""
        law = drafter.law(())
        token = coins.independent(law, -1, 0)
        kinds = [Draw.DETERMINISTIC, sampled, Draw.DETERMINISTIC]
        return Proposal(
            tokens=np.asarray([2, token, (token + 1) % 4]),
            parents=np.asarray([-1, -1, -1]),
            draw=np.asarray([int(kind) for kind in kinds]),
            source=("toy",) * 3,
            confidence=np.ones(3),
            probs=law[None, :],
        )

    assert bias(target, mixed, Rule.TOKEN, 2) < 1e-14


def test_plain_decoding_is_the_empty_tree():
    target = Toy(13)
    for rule in Rule:
        assert bias(target, lambda coins: Proposal.empty(), rule, 1) < 1e-15
