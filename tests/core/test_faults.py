"""Proof by mutation: each biased design is the shipped code with one step replaced, and the exactness suite sees it."""

import math
from dataclasses import fields

import numpy as np
import pytest
from toy import bias

from outrider.analysis.faults import FAULTS, HONEST
from outrider.bench.enumeration import all_checks, cheapest_first, run_check
from outrider.bench.toys import Toy, draw_tree
from outrider.core.params import Draw, Rule
from outrider.core.steps import STEPS, Steps

CHEAP_FIRST = cheapest_first(check for rule in Rule if rule.is_exact for check in all_checks(rule))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_the_suite_sees_every_biased_design(fault):
    """The very checks of `test_verify_exact` until one of them fails on the design, far beyond its 1e-14."""
    if fault.where == "coins":  # enumeration itself refuses a coin that was tossed before
        assert any(run_check(check, fault) == math.inf for check in CHEAP_FIRST)
    else:
        assert any(1e-6 < run_check(check, fault) < math.inf for check in CHEAP_FIRST)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_design_replaces_one_step(fault):
    replaced = [f.name for f in fields(Steps) if getattr(fault.steps, f.name) is not getattr(STEPS, f.name)]
    other = [fault.emit is not HONEST.emit, fault.round_of is not HONEST.round_of]
    assert len(replaced) + sum(other) == 1


def test_names_are_different_and_every_part_has_a_fault():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert {fault.where for fault in FAULTS} == {"verify", "drafter", "trim", "pass", "coins"}
    unneeded = {"typical_threshold"}  # TYPICAL is not exact to begin with
    touched = {
        f.name for fault in FAULTS for f in fields(Steps) if getattr(fault.steps, f.name) is not getattr(STEPS, f.name)
    }
    assert touched == {f.name for f in fields(Steps)} - unneeded


def test_wrongly_declared_draws_are_biased():
    """SD-08 the other way round: the kind of draw is not a label, it decides the law."""
    target, drafter = Toy(23, 4), Toy(24, 4)

    def mislabelled(real, said):
        def make(coins):
            tree = draw_tree(coins, drafter, (2,), real)
            return type(tree)(
                tree.tokens, tree.parents, np.full(2, int(said)), tree.source, tree.confidence, tree.probs
            )

        return make

    assert bias(target, mislabelled(Draw.IID, Draw.WITHOUT_REPLACEMENT), Rule.TOKEN, 1) > 1e-3
    assert bias(target, mislabelled(Draw.WITHOUT_REPLACEMENT, Draw.IID), Rule.TOKEN, 1) > 1e-3


def test_default_steps_are_the_exact_ones():
    assert Steps() == STEPS == HONEST.steps
