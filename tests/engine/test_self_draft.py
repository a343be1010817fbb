"""With the target as its own draft model every token is accepted: faults of the draft's cache never show in the text.

Written against vllm-project/vllm PR 5765 and PR 9730 (a hole in the draft's cache after a fully accepted draft),
lablup/mlxcel#994 (a draft cache cut back too far at every rejection), ml-explore/mlx-lm PR 1109.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from engine_helpers import PROMPT, VOCAB, Listening, decoder, engine, finish, plain, run

from outrider.core.params import Rule, SamplingParams, Speculation
from outrider.core.types import Proposal
from outrider.drafters.base import DraftContext
from outrider.drafters.draft_model import DraftModel
from outrider.policies.fixed import Fixed


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("rule", Rule)
def test_every_token_is_accepted_at_every_length(rule: Rule, temperature: float) -> None:
    target, count = decoder(), 300 if (rule, temperature) == (Rule.MATCH, 0.7) else 90
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=count, presence_penalty=0.3)
    running = engine(target, [DraftModel(target, VOCAB)], Fixed(8))
    asked = [Speculation(rule=rule, length=length) for length in range(1, 9)]
    requests = [running.submit(PROMPT, params, speculation)[0] for speculation in asked]
    finish(running)
    for length, request in enumerate(requests, 1):
        stats = request.stats
        assert stats.rejections == stats.rejected == stats.discarded == 0
        assert stats.accepted_fraction == stats.acceptance_rate == 1
        assert stats.steps == -(-count // (length + 1))
        if rule is Rule.MATCH:
            assert request.output == plain(target, PROMPT, params)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", [Rule.MATCH, Rule.TOKEN, Rule.TRAVERSAL])
def test_no_node_of_a_tree_has_children_that_are_all_refused(rule: Rule, temperature: float) -> None:
    target, count = decoder(), 80
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=count, presence_penalty=0.3)
    running = engine(target, [DraftModel(target, VOCAB)], Fixed(6))
    asked = [Speculation(rule=rule, tree=tree) for tree in ("2x6", "3x12", "4x31")]
    requests = [running.submit(PROMPT, params, speculation)[0] for speculation in asked]
    finish(running)
    for request in requests:
        assert request.stats.rejections == 0
        assert request.stats.accepted > count // 2
        assert request.stats.drafted > 2 * request.stats.drafted_steps
        if rule is Rule.MATCH:
            assert request.output == plain(target, PROMPT, params)


def test_a_stop_inside_a_block_discards_and_rejects_nothing() -> None:
    target = decoder()
    full = plain(target, PROMPT, SamplingParams(temperature=1.0, seed=3, max_tokens=40))
    for stop in full[5:12]:
        params = SamplingParams(temperature=1.0, seed=3, max_tokens=40, stop_token_ids=[stop])
        stats = run(engine(target, [DraftModel(target, VOCAB)], Fixed(6)), PROMPT, params).stats
        assert stats.rejections == 0
        assert stats.accepted + stats.discarded == stats.drafted


class Corrupting(DraftModel):
    """Makes one proposed token wrong, the same place in every round, and watches its own cache."""

    place = 0

    def propose(self, contexts: Sequence[DraftContext]) -> list[Proposal]:
        for context in contexts:
            behind = len(context.tokens) - self.num_cached(context.request_id)
            assert behind == (len(context.tokens) if len(context.tokens) == context.num_prompt else 1)
        return [self._corrupt(proposal) for proposal in super().propose(contexts)]

    def _corrupt(self, proposal: Proposal) -> Proposal:
        tokens = np.where(np.arange(proposal.num_nodes) == self.place, (proposal.tokens + 1) % VOCAB, proposal.tokens)
        return Proposal.chain(tokens, source=self.name, confidence=proposal.confidence)


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_acceptance_stays_whole_up_to_a_token_that_is_wrong_in_every_round(temperature: float, place: int) -> None:
    target, count = decoder(), 300 if (place, temperature) == (2, 1.0) else 80
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=count)
    drafter, policy = Corrupting(target, VOCAB), Listening(Fixed(5))
    drafter.place = place
    running = engine(target, [drafter], policy)
    request = run(running, PROMPT, params)
    assert not running.drafters.num_failures
    assert request.output == plain(target, PROMPT, params)
    whole = [outcome for outcome in policy.outcomes if len(outcome.parents) > place]
    assert {outcome.kept.num_accepted for outcome in whole} == {place}
    assert len(whole) >= count // (place + 1) - 2
