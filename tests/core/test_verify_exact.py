"""The emitted law is the target's, by enumeration of every coin on the lines that serve."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import PROMPT, Toy, TreeLaws, bias, draft_tree, emitted, round_law

from outrider.analysis.enumerate import complete, enumerate_law, largest_difference, text_law
from outrider.core.params import Draw, Rule, SamplingParams
from outrider.core.types import Proposal
from outrider.core.verify import verify
from strategies import proposals, sampling_params

SAMPLED = [Draw.IID, Draw.WITHOUT_REPLACEMENT, Draw.TOP_PLUS_SAMPLE]
PATH_DEPENDENT = SamplingParams(
    temperature=0.8,
    top_k=3,
    top_p=0.93,
    min_p=0.02,
    repetition_penalty=1.4,
    presence_penalty=0.3,
    frequency_penalty=0.5,
    bad_words=[[2, 0], [1, 1]],
    min_tokens=3,
    logit_bias={0: 0.4},
)


@pytest.mark.parametrize("widths", [(1,), (1, 1, 1), (2,), (3,), (2, 1), (1, 2)])
@pytest.mark.parametrize("draw", [Draw.DETERMINISTIC, *SAMPLED])
def test_token_rule_keeps_the_law(make, draw, widths):
    target, drafter = Toy(1, make=make), Toy(2, make=make)
    assert bias(target, lambda coins: draft_tree(coins, drafter, widths, draw), Rule.TOKEN, 4) < 1e-14


@pytest.mark.parametrize("draw", [Draw.DETERMINISTIC, *SAMPLED])
def test_token_rule_keeps_the_law_of_two_by_two_trees(draw):
    target, drafter = Toy(3), Toy(4)
    assert bias(target, lambda coins: draft_tree(coins, drafter, (2, 2), draw), Rule.TOKEN, 3) < 1e-14


@pytest.mark.parametrize("draw", [Draw.DETERMINISTIC, *SAMPLED])
@pytest.mark.parametrize("committed", [(), (2, 2)])
def test_token_rule_keeps_path_dependent_laws(make, draw, committed):
    """SD-18, SD-19, AX-18: vllm-project/vllm#18902, sgl-project/sglang PR 33643."""
    target = Toy(5, 4, PATH_DEPENDENT, committed=committed, end_ids=(3,), make=make)
    drafter = Toy(6, 4, SamplingParams(temperature=1.0, top_k=3), committed=committed, make=make)
    widths = (2, 1) if draw == Draw.DETERMINISTIC else (1, 1)
    assert bias(target, lambda coins: draft_tree(coins, drafter, widths, draw), Rule.TOKEN, 4) < 1e-14


@pytest.mark.parametrize("committed", [(), (2, 2)])
def test_match_rule_keeps_path_dependent_laws(make, committed):
    target = Toy(5, 4, PATH_DEPENDENT, committed=committed, end_ids=(3,), make=make)
    drafter = Toy(6, 4, committed=committed, make=make)
    assert bias(target, lambda coins: draft_tree(coins, drafter, (2, 2), Draw.DETERMINISTIC), Rule.MATCH, 4) < 1e-14


@pytest.mark.parametrize("draw", [Draw.IID, Draw.WITHOUT_REPLACEMENT])
def test_two_rounds_in_a_row_keep_the_law(draw):
    """The second pass drafts after what the first one emitted; its coins are fresh."""
    seeds, params = (14, 15), SamplingParams(temperature=0.9, presence_penalty=0.8)

    def two_passes(coins):
        text = ()
        for coins.round in range(2):
            target, drafter = Toy(seeds[0], 3, params, committed=text), Toy(seeds[1], 3, committed=text)
            proposal = draft_tree(coins, drafter, (2 - coins.round,), draw)
            laws, start = TreeLaws(target, [proposal]), [len(PROMPT) + len(text)]
            (result,) = verify([Rule.TOKEN], laws, [proposal], coins, start)
            text += emitted(proposal, result)
        return text

    plain = Toy(seeds[0], 3, params)
    got = complete(enumerate_law(two_passes), plain.numpy_law, 4)
    assert largest_difference(got, text_law(plain.numpy_law, 4)) < 1e-14


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("top_p", [1.0, 0.7])
@pytest.mark.parametrize("top_k", [0, 2])
def test_target_settings_reach_every_row(temperature, top_p, top_k):
    """SD-06: vllm-project/vllm PR 10198, ohdearquant/lattice PR 974. A plain drafter; the support is the nucleus."""
    target = Toy(7, params=SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k))
    drafter = Toy(8)
    for draw in (Draw.IID, Draw.TOP_PLUS_SAMPLE):
        assert bias(target, lambda coins, d=draw: draft_tree(coins, drafter, (2, 1), d), Rule.TOKEN, 3) < 1e-14


@given(st.data())
def test_token_rule_keeps_every_law(data):
    params = data.draw(sampling_params(3))
    seeds = data.draw(st.tuples(st.integers(0, 999), st.integers(0, 999)))
    draw = data.draw(st.sampled_from([Draw.DETERMINISTIC, *SAMPLED]))
    widths = data.draw(st.sampled_from([(1,), (1, 1), (2,), (3,), (2, 1)]))
    target, drafter = Toy(seeds[0], 3, params, end_ids=(2,), scale=3.0), Toy(seeds[1], 3, scale=3.0)
    reached = round_law(target, lambda coins: draft_tree(coins, drafter, widths, draw), Rule.TOKEN)
    if any(text[-1] < 0 for text in reached):  # somewhere every token is banned: nothing to compare
        return
    if any(np.isnan(target.numpy_law(text)).any() for text in reached):
        return
    length = min(len(text) for text in reached)
    assert bias(target, lambda coins: draft_tree(coins, drafter, widths, draw), Rule.TOKEN, length) < 1e-12


@given(proposals(3, 5), st.integers(0, 999), st.sampled_from(list(Rule)))
def test_both_rules_keep_the_law_for_any_deterministic_tree(proposal, seed, rule):
    """SD-08: apple/ml-recurrent-drafter#6, xLLM-AI/xllm PR 2175; SD-05: huggingface/transformers#32867."""
    assert bias(Toy(seed, scale=2.5), lambda coins: proposal, rule, 3) < 1e-12


def test_match_and_token_emit_one_law_for_deterministic_trees():
    target, drafter = Toy(9), Toy(10)
    laws = [
        round_law(target, lambda coins: draft_tree(coins, drafter, (2, 2), Draw.DETERMINISTIC), rule) for rule in Rule
    ]
    assert laws[0].keys() == laws[1].keys()
    assert max(abs(laws[0][text] - laws[1][text]) for text in laws[0]) < 1e-14


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
