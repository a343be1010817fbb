"""What every registered drafter keeps to. A drafter that is registered without a case here makes a test fail."""

from collections import defaultdict

import numpy as np
import pytest
import torch
from drafters_helpers import NOTHING_SEEN, context, kept, plan

from outrider.core.params import Draw, SamplingParams
from outrider.core.tree import children, depths, path, validate
from outrider.core.types import Plan
from outrider.drafters import scripted
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.none import NoDrafter
from outrider.drafters.prediction import PredictionDrafter
from outrider.drafters.recycling import RecyclingDrafter
from outrider.drafters.registry import list_drafters
from outrider.drafters.scripted import ScriptedDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.models.toy import TableTarget

VOCAB = 16
TEXT = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3, 4, 1, 2]
OTHER = [7, 7, 1, 2, 9, 9, 1, 2]
STOPS = frozenset({4})


class EndlessText(defaultdict):
    def __init__(self):
        super().__init__(lambda: (TEXT * 40)[:])


CASES = {
    "none": NoDrafter,
    "ngram": lambda: NgramDrafter(4, 1),
    "suffix": SuffixDrafter,
    "prediction": PredictionDrafter,
    "recycling": RecyclingDrafter,
    "draft_model": lambda: DraftModel(TableTarget(VOCAB, order=2, seed=3), VOCAB),
    "scripted": lambda: ScriptedDrafter(scripted.all_right(EndlessText())),  # not registered: for tests
}


def test_every_registered_drafter_is_in_this_suite():
    assert {entry.name for entry in list_drafters()} <= set(CASES)


@pytest.fixture(params=sorted(CASES))
def make(request):
    def started(texts=None):
        drafter = CASES[request.param]()
        drafter.load()
        for request_id, tokens in ({"r": TEXT} if texts is None else texts).items():
            drafter.begin(request_id, tokens)
        return drafter

    return started


def ask(drafter, tokens=TEXT, budget=4, *, request_id="r", **more):
    return drafter.propose([asked(drafter, tokens, budget, request_id=request_id, **more)])[0]


def asked(drafter, tokens, budget, *, request_id="r", depth=None, width=1, **more):
    more.setdefault("params", SamplingParams(temperature=1.0))
    more.setdefault("prediction", TEXT)
    return context(
        tokens, plan(drafter.name, budget, depth=depth, width=width), request_id=request_id, vocab_size=VOCAB, **more
    )


def same(first, second):
    return first.tokens.tolist() == second.tokens.tolist() and first.parents.tolist() == second.parents.tolist()


@pytest.mark.parametrize("width", [1, 3])
def test_proposals_are_trees_within_their_plan(make, width):
    drafter = make()
    for budget in range(7):
        for depth in range(5):
            proposal = ask(drafter, budget=budget, depth=depth, width=width)
            validate(proposal, VOCAB)
            assert proposal.num_nodes <= budget
            assert depths(proposal.parents).max(initial=0) <= depth
            assert max(map(len, children(proposal.parents))) <= width
            assert set(proposal.source) <= {drafter.name}


def test_no_budget_no_proposal(make):
    drafter = make()
    assert ask(drafter, budget=0).num_nodes == 0
    assert ask(drafter, budget=4, depth=0).num_nodes == 0
    elsewhere = context(TEXT, Plan((("somebody else", 4),), 4), vocab_size=VOCAB)
    assert drafter.propose([elsewhere])[0].num_nodes == 0
    assert drafter.propose([]) == []


@pytest.mark.parametrize("draw", list(Draw))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_draw_and_laws_tell_how_a_node_came_about(make, draw, temperature):
    drafter = make()
    proposal = ask(drafter, draw=draw, params=SamplingParams(temperature=temperature))
    assert set(proposal.draw.tolist()) <= {int(Draw.DETERMINISTIC), int(draw)}
    if proposal.probs is None:
        assert set(proposal.draw.tolist()) <= {int(Draw.DETERMINISTIC), int(Draw.SHARED_NOISE)}
        return
    assert draw not in (Draw.DETERMINISTIC, Draw.SHARED_NOISE)
    laws = torch.as_tensor(proposal.probs)
    assert laws.shape == (len(set(proposal.parents.tolist())), VOCAB)
    assert torch.allclose(laws.sum(-1), torch.ones(len(laws)))
    first_parents = list(dict.fromkeys(proposal.parents.tolist()))
    for node in np.flatnonzero(proposal.draw != Draw.DETERMINISTIC):
        assert laws[first_parents.index(proposal.parents[node]), proposal.tokens[node]] > 0


def test_nothing_stands_below_a_stop_token(make):
    for seed in range(10):
        proposal = ask(make(), budget=8, stops=STOPS, seed=seed)
        above = [
            int(proposal.tokens[n]) for node in range(proposal.num_nodes) for n in path(proposal.parents, node)[:-1]
        ]
        assert not STOPS & set(above)


def test_a_prompt_of_one_token_is_ordinary(make):
    proposal = ask(make({"r": [3]}), [3])
    validate(proposal, VOCAB)


def test_the_same_context_gives_the_same_proposal(make):
    first, second = ask(make()), ask(make())
    assert same(first, second)
    assert first.confidence.tolist() == second.confidence.tolist()


def test_asking_twice_gives_the_same_proposal(make):
    drafter = make()
    assert same(ask(drafter), ask(drafter))


def grow(drafter, tokens, blocks, *, request_id="r", draws=True):
    """Let blocks be emitted, right after a proposal or without one."""
    tokens = list(tokens)
    for number, block in enumerate(blocks):
        if draws and number % 3 != 2:
            ask(drafter, tokens, request_id=request_id, round_number=number)
        tokens.extend(block)
        drafter.observe(request_id, kept(block), NOTHING_SEEN)
    return tokens


BLOCKS = [[3], [4, 1, 2], [7, 8], [1, 2, 3, 4, 1], [3, 5], [1], [2]]


def test_a_proposal_depends_on_the_text_and_not_on_how_it_came_about(make):
    drafter = make()
    tokens = grow(drafter, TEXT, BLOCKS)
    assert same(ask(drafter, tokens), ask(make({"r": tokens}), tokens))


def test_emitted_draft_tokens_leave_it_in_step(make):
    drafter = make()
    tokens = list(TEXT)
    for number in range(12):
        proposal = ask(drafter, tokens, round_number=number)
        validate(proposal, VOCAB)
        block = [*proposal.tokens.tolist()[: number % 5], number % VOCAB]
        tokens.extend(block)
        drafter.observe("r", kept(block), NOTHING_SEEN)
    assert same(ask(drafter, tokens), ask(make({"r": tokens}), tokens))


def test_one_requests_text_never_changes_anothers_proposals(make):
    alone, shared = make(), make({"r": TEXT, "other": OTHER})
    tokens = list(TEXT)
    for number, block in enumerate(BLOCKS):
        both = shared.propose(
            [
                asked(shared, OTHER + [number] * number, 4, request_id="other", round_number=number),
                asked(shared, tokens, 4, round_number=number),
            ]
        )
        assert same(ask(alone, tokens, round_number=number), both[1])
        shared.observe("other", kept([number]), NOTHING_SEEN)
        tokens = tokens + block
        for drafter in (alone, shared):
            drafter.observe("r", kept(block), NOTHING_SEEN)
    shared.end("other")
    assert same(ask(alone, tokens), ask(shared, tokens))


def test_scores_are_shares(make):
    drafter = make()
    for block in BLOCKS:
        ask(drafter)
        score = drafter.observe("r", kept(block), NOTHING_SEEN)
        assert score is None or 0 <= score <= 1
    drafter.observe("r", kept([]), NOTHING_SEEN)  # a prompt chunk commits nothing


def test_a_preempted_request_resumes_with_more_or_fewer_tokens(make):
    for resumed in ([*TEXT, 3, 4], TEXT[:5], OTHER):
        drafter = make()
        grow(drafter, TEXT, BLOCKS[:3])
        drafter.drop("r")
        drafter.begin("r", resumed)
        assert same(ask(drafter, resumed), ask(make({"r": resumed}), resumed))


def test_unknown_requests_are_ignored(make):
    drafter = make()
    drafter.end("never seen")
    drafter.drop("never seen")
    drafter.end("r")
    drafter.end("r")


def test_ended_requests_leave_nothing_behind(make):
    """ggml-org/llama.cpp#27692: the draft state of finished requests stayed until drafting silently stopped."""
    drafter = make({})
    before = drafter.state_bytes
    for number in range(100):
        request_id = f"request {number}"
        tokens = [(number + n) % VOCAB for n in range(6)] * 2
        drafter.begin(request_id, tokens)
        last = ask(drafter, tokens, request_id=request_id)
        drafter.observe(request_id, kept([1, 2]), NOTHING_SEEN)
        (drafter.drop if number % 2 else drafter.end)(request_id)
    assert drafter.state_bytes == before
    assert drafter.name == "none" or last.num_nodes > 0


def test_the_same_request_sent_again_is_served_alike(make):
    """ggml-org/llama.cpp#19231: drafts only for the first request."""
    drafter = make({})
    answers = []
    for _ in range(5):
        drafter.begin("r", TEXT)
        answers.append(ask(drafter))
        grow(drafter, TEXT, BLOCKS)
        drafter.end("r")
    assert all(same(answers[0], answer) for answer in answers)


def test_unload_frees_all(make):
    drafter = make()
    ask(drafter)
    drafter.unload()
    assert drafter.state_bytes == 0
