"""Steps that break off, proposals that no rule can judge, and policies that ask for the impossible."""

import numpy as np
import pytest
from engine_helpers import PROMPT, Listening, SameText, assert_idle, decoder, engine, finish, plain

from outrider.core.params import Draw, Rule, SamplingParams, Speculation
from outrider.core.types import Proposal
from outrider.drafters.scripted import ScriptedDrafter, all_right
from outrider.engine.batch import trim
from outrider.policies.base import RequestView
from outrider.policies.fixed import Fixed

PARAMS = SamplingParams(max_tokens=20)


class Interrupting(Listening):
    """A policy in which the user presses Ctrl-C once."""

    countdown = 4

    def update(self, outcome) -> None:
        super().update(outcome)
        self.countdown -= 1
        if self.countdown == 0:
            raise KeyboardInterrupt


def test_a_step_that_breaks_off_leaves_nothing_that_was_not_committed() -> None:
    target = decoder()
    text = plain(target, PROMPT, PARAMS)
    right = ScriptedDrafter(all_right(SameText([*PROMPT, *text])))
    running = engine(target, [right], Interrupting(Fixed(2)))
    requests = [running.submit(PROMPT, PARAMS)[0] for _ in range(3)]
    with pytest.raises(KeyboardInterrupt):
        finish(running)
    running.cache.check_integrity()
    finish(running)
    assert [request.output for request in requests] == [text] * 3
    assert_idle(running)


@pytest.mark.parametrize("draw", [Draw.SHARED_NOISE, Draw.IID])
def test_a_proposal_that_the_rule_cannot_judge_is_dropped_alone(draw: Draw) -> None:
    drafter = ScriptedDrafter(lambda _request, _tokens, _budget: Proposal.chain([1], source="scripted", draw=draw))
    running = engine(decoder(), [drafter])
    (odd,) = running.submit(PROMPT, PARAMS, Speculation(rule=Rule.TOKEN))
    (other,) = running.submit(PROMPT, PARAMS)
    finish(running)
    assert odd.num_output == other.num_output == 20
    assert odd.stats.drafted == 0
    assert running.drafters.num_failures["scripted"] > 0


def view(rule: Rule, max_nodes: int = 8) -> RequestView:
    return RequestView("r", rule, ("a",), None, 5, 0, max_nodes)


def test_outside_match_a_policy_cannot_leave_out_a_sampled_node() -> None:
    tokens, parents = np.arange(4), np.array([-1, 0, 0, 1])
    draw = np.array([Draw.IID, Draw.IID, Draw.DETERMINISTIC, Draw.DETERMINISTIC])
    proposal = Proposal(tokens, parents, draw, ("a",) * 4, np.ones(4), np.ones((3, 8)) / 8)
    assert trim(proposal, [], view(Rule.TOKEN)).tokens.tolist() == [0, 1]
    assert trim(proposal, [2], view(Rule.TOKEN)).tokens.tolist() == [0, 1, 2]
    assert trim(proposal, [], view(Rule.MATCH)).num_nodes == 0
    assert trim(proposal, [3], view(Rule.MATCH)).tokens.tolist() == [0, 1, 3]  # its ancestors come along
    assert trim(proposal, range(4), view(Rule.MATCH, 2)).tokens.tolist() == [0, 1]


def test_the_time_of_a_shared_pass_is_shared() -> None:
    policy = Listening()
    running = engine(decoder(), [], policy)
    for _ in range(4):
        running.submit(PROMPT, PARAMS)
    finish(running)
    passes = {(outcome.context_length, outcome.verify_seconds) for outcome in policy.outcomes}
    assert running.stats.verify_seconds == pytest.approx(sum(seconds for _, seconds in passes))
