"""What the exactness tests would see: one step of the rules replaced, the enumeration reports the bias."""

import numpy as np
import pytest
from toy import Toy, bias, draft_tree

from outrider.core.params import Draw, Rule
from outrider.core.steps import STEPS, Steps, acceptance, removal, sibling_order


def forgets_division(target, draft, tokens):
    """jaymody/speculative-sampling#3: the ratio of a sampled draft without its denominator."""
    return target[np.arange(len(tokens)), tokens]


def soft_ratio(target, draft, tokens):
    """SD-05, huggingface/transformers#32867: a deterministic draft judged with a soft probability."""
    return 2.0 * target[np.arange(len(tokens)), tokens]


def lenient(target, draft, tokens):
    return np.minimum(1.0, 1.5 * acceptance(target, draft, tokens))


def accepts_everything(target, draft, tokens):
    """AX-05, huggingface/transformers PR 28508."""
    return np.ones(len(tokens))


def keeps_target(target, draft):
    return target


def keeps_rejected_token(target, draft):
    mixed = np.abs(target - draft)
    return mixed / mixed.sum(axis=1, keepdims=True)


def removes_always(draft, tokens, without_replacement):
    return removal(draft, tokens, np.ones_like(without_replacement))


def removes_never(draft, tokens, without_replacement):
    return draft


def reversed_siblings(draws):
    return sibling_order(draws)[::-1]


def every_companion_is_a_sample(draws):
    return [(number, draw) for number, draw in enumerate(draws)]


def matches_first_child(tokens, sampled):
    return 0 if tokens else None


FAULTS = [
    (Steps(acceptance=forgets_division), Draw.IID, (1,)),
    (Steps(acceptance=soft_ratio), Draw.DETERMINISTIC, (1,)),
    (Steps(acceptance=lenient), Draw.IID, (1, 1)),
    (Steps(acceptance=accepts_everything), Draw.IID, (1,)),
    (Steps(residual=keeps_target), Draw.IID, (1,)),
    (Steps(residual=keeps_target), Draw.DETERMINISTIC, (1,)),
    (Steps(residual=keeps_rejected_token), Draw.IID, (1,)),
    (Steps(removal=removes_always), Draw.IID, (2,)),
    (Steps(removal=removes_never), Draw.WITHOUT_REPLACEMENT, (2,)),
    (Steps(sibling_order=reversed_siblings), Draw.WITHOUT_REPLACEMENT, (2,)),
    (Steps(sibling_order=every_companion_is_a_sample), Draw.TOP_PLUS_SAMPLE, (2,)),
]


@pytest.mark.parametrize(("steps", "draw", "widths"), FAULTS)
def test_enumeration_sees_each_planted_fault(steps, draw, widths):
    target, drafter = Toy(21, 4), Toy(22, 4)
    honest = bias(target, lambda coins: draft_tree(coins, drafter, widths, draw), Rule.TOKEN, 2)
    faulty = bias(target, lambda coins: draft_tree(coins, drafter, widths, draw), Rule.TOKEN, 2, steps)
    assert honest < 1e-14
    assert faulty > 1e-3


def test_enumeration_sees_a_match_that_trusts_the_draft():
    target, drafter = Toy(21), Toy(22)
    faulty = bias(
        target,
        lambda coins: draft_tree(coins, drafter, (2,), Draw.DETERMINISTIC),
        Rule.MATCH,
        2,
        Steps(match_child=matches_first_child),
    )
    assert faulty > 1e-3


def test_wrongly_declared_draws_are_biased():
    """SD-08 the other way round: the kind of draw is not a label, it decides the law."""
    target, drafter = Toy(23, 4), Toy(24, 4)

    def mislabelled(real, said):
        def make(coins):
            tree = draft_tree(coins, drafter, (2,), real)
            return type(tree)(
                tree.tokens, tree.parents, np.full(2, int(said)), tree.source, tree.confidence, tree.probs
            )

        return make

    assert bias(target, mislabelled(Draw.IID, Draw.WITHOUT_REPLACEMENT), Rule.TOKEN, 1) > 1e-3
    assert bias(target, mislabelled(Draw.WITHOUT_REPLACEMENT, Draw.IID), Rule.TOKEN, 1) > 1e-3


def test_default_steps_are_the_exact_ones():
    assert Steps() == STEPS
