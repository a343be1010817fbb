import numpy as np
import pytest

from outrider.core.params import Rule
from outrider.core.types import Kept, Outcome, Plan
from outrider.errors import InvalidRequestError
from outrider.policies.base import RequestView, Shape
from outrider.policies.fixed import Fixed
from outrider.policies.heuristic import Heuristic


def view(request_id="r", *, rule=Rule.MATCH, drafters=("ngram", "draft_model"), length=None, max_nodes=64, tree=None):
    return RequestView(request_id, rule, drafters, length, 10, num_output=0, max_nodes=max_nodes, tree=tree)


def outcome(num_drafted, num_accepted, request_id="r", reason=None):
    accepted = np.arange(num_drafted) < num_accepted
    return Outcome(
        request_id=request_id,
        plan=Plan(),
        parents=np.arange(-1, num_drafted - 1),
        source=("ngram",) * num_drafted,
        confidence=np.ones(num_drafted),
        accepted=accepted,
        num_rejected=int(num_accepted < num_drafted),
        kept=Kept((1,) * (num_accepted + 1), tuple(range(num_accepted)), num_accepted, reason),
        draft_seconds=0.0,
        verify_seconds=0.0,
        rows=num_drafted + 1,
        pass_rows=num_drafted + 1,
        context_length=10,
    )


def test_fixed_plans_the_same_for_all():
    first, second = Fixed(6).choose([view("a"), view("b")])
    assert first == second == Plan((("ngram", 6), ("draft_model", 6)), 6)
    assert first.max_width == 1


@pytest.mark.parametrize(("length", "max_nodes", "expected"), [(None, 64, 6), (2, 64, 2), (9, 3, 3), (None, 1, 1)])
def test_a_plan_keeps_to_the_request_and_to_what_is_of_use(length, max_nodes, expected):
    plan = Fixed(6).choose([view(length=length, max_nodes=max_nodes)])[0]
    assert plan.max_depth == expected
    assert all(budget == expected for _, budget in plan.drafters)


@pytest.mark.parametrize("policy", [Fixed(4), Heuristic(start=4)])
@pytest.mark.parametrize(
    ("tree", "max_nodes", "expected"),
    [((3, 16), 64, (16, 4, 3)), ((2, 31), 9, (9, 4, 2)), ((3, 3), 64, (3, 3, 3)), ((1, 9), 64, (4, 4, 1))],
)
def test_a_tree_that_a_request_asks_for_is_planned(policy, tree, max_nodes, expected):
    plan = policy.choose([view(tree=tree, max_nodes=max_nodes)])[0]
    assert (plan.drafters[0][1], plan.max_depth, plan.max_width) == expected


def test_nothing_is_planned_where_nothing_is_of_use_or_nobody_may_draft():
    assert Fixed().choose([view(max_nodes=0), view(drafters=())]) == [Plan(), Plan()]
    assert Fixed().choose([view(max_nodes=0)])[0].is_off


def test_the_order_of_drafters_can_be_chosen_but_not_who_may_serve():
    plan = Fixed(2, ["suffix", "draft_model", "ngram"]).choose([view()])[0]
    assert [name for name, _ in plan.drafters] == ["draft_model", "ngram"]
    assert Fixed(2, ["suffix"]).choose([view()])[0].is_off


@pytest.mark.parametrize("policy", [Fixed(4), Heuristic()])
def test_law_exact_rules_get_one_drafter(policy):
    assert policy.choose([view(rule=Rule.TOKEN)])[0].drafters == (("ngram", 4),)


@pytest.mark.parametrize("policy", [Fixed(), Heuristic()])
def test_everything_is_admitted(policy):
    shapes = [Shape(np.array([-1, -1, 0]), np.ones(3), np.zeros(3, dtype=np.int64)), Shape(*[np.zeros(0)] * 3)]
    admitted = policy.admit(shapes, [view(), view()])
    assert [nodes.tolist() for nodes in admitted] == [[0, 1, 2], []]
    assert all(nodes.dtype == np.int64 for nodes in admitted)


def test_heuristic_rises_by_two_and_falls_by_one():
    policy = Heuristic(start=4, maximum=7)
    lengths = []
    for accepted in (True, True, False, False, False, False, False, False, False):
        length = policy.choose([view()])[0].max_depth
        lengths.append(length)
        policy.update(outcome(length, length if accepted else length - 1))
    assert lengths == [4, 6, 7, 6, 5, 4, 3, 2, 1]
    assert policy.length("r") == 1


def test_steps_that_drafted_nothing_say_nothing():
    policy = Heuristic(start=4)
    policy.update(outcome(0, 0))
    assert policy.length("r") == 4


def test_no_request_inherits_from_another_in_either_order():
    """huggingface/transformers#28759: a length that outlived its call."""
    for bad, good in (("a", "b"), ("b", "a")):
        policy = Heuristic(start=4, maximum=16)
        for _ in range(5):
            policy.update(outcome(4, 0, bad))
            policy.update(outcome(4, 4, good))
        assert (policy.length(bad), policy.length(good), policy.length("new")) == (1, 14, 4)


def test_ended_requests_are_forgotten():
    policy = Heuristic(start=4)
    policy.update(outcome(4, 0, "a"))
    policy.update(outcome(4, 4, "b"))
    policy.update(outcome(4, 4, "b", reason="stop"))
    assert policy.num_requests == 1
    policy.forget("a")
    policy.forget("never seen")
    assert policy.num_requests == 0
    assert policy.length("a") == 4


def test_impossible_lengths_are_refused():
    with pytest.raises(InvalidRequestError, match="length"):
        Fixed(0)
    for length in ("5", 1.5, True, None):
        with pytest.raises(InvalidRequestError, match=rf"^length of policy fixed is {length!r}; give a whole number"):
            Fixed(length)
    assert Fixed(np.int64(6)).choose([view()])[0].max_depth == 6
    with pytest.raises(InvalidRequestError, match="start=5 and max=4"):
        Heuristic(5, 4)
    with pytest.raises(InvalidRequestError, match="start=0"):
        Heuristic(0)
    with pytest.raises(InvalidRequestError, match=r"start=.4."):
        Heuristic("4")
