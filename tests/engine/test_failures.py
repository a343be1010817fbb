"""Broken logits end one request with an error and never give a token; a broken drafter costs speed only.

Written against ohdearquant/lattice PR 375 (comparisons with NaN are false, so the draft was accepted) and
duoan/TorchCode#16 (a residual without mass).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from engine_helpers import PROMPT, VOCAB, Altered, SameText, Wide, assert_idle, decoder, engine, finish, plain, run

from outrider.core.params import Rule, SamplingParams, Speculation
from outrider.core.types import Kept, Plan, Proposal
from outrider.drafters import scripted
from outrider.drafters.base import DraftContext, Needs, Observation
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.scripted import ScriptedDrafter
from outrider.errors import GenerationError, InvalidRequestError, UnsupportedError
from outrider.models.base import ForwardInputs
from outrider.policies.base import Policy
from outrider.policies.fixed import Fixed
from outrider.policies.heuristic import Heuristic

COUNT = 20
BAD = 11  # index in the sequence of the first token that cannot be drawn


def broken(value: float, places: slice = slice(None)) -> Callable[[ForwardInputs, torch.Tensor], torch.Tensor]:
    """Puts a value into the rows behind the token at place `BAD - 1`."""

    def change(inputs: ForwardInputs, logits: torch.Tensor) -> torch.Tensor:
        rows = torch.from_numpy(inputs.positions[inputs.logits_rows] == BAD - 1)
        logits[rows, places] = value
        return logits

    return change


@pytest.mark.parametrize("drafting", ["right", "tree", "draft model", "none"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(broken(float("nan")), id="all NaN"),
        pytest.param(broken(float("nan"), slice(5, 6)), id="one NaN"),
        pytest.param(broken(float("inf"), slice(3, 4)), id="+inf"),
        pytest.param(broken(float("-inf")), id="all -inf"),
    ],
)
@pytest.mark.parametrize("rule", Rule)
def test_logits_that_give_no_law_end_their_request_only(
    rule: Rule, change: Any, temperature: float, drafting: str
) -> None:
    good, params = decoder(), SamplingParams(temperature=temperature, seed=1, max_tokens=COUNT)
    target = Altered(good, change)
    texts = SameText([*PROMPT, *plain(good, PROMPT, params)])
    drafters = {
        "right": [ScriptedDrafter(scripted.all_right(texts))],
        "tree": [ScriptedDrafter(scripted.deep_tree(texts, 2, -1, VOCAB))],
        "draft model": [DraftModel(good, VOCAB)],
        "none": [],
    }
    running = engine(target, drafters[drafting], Wide(8, 4, 2) if drafting == "tree" else Fixed(4))
    speculation = Speculation(rule=rule)
    (victim,) = running.submit(PROMPT, params, speculation)
    (short,) = running.submit(PROMPT, SamplingParams(max_tokens=BAD - len(PROMPT)), speculation)
    (long,) = running.submit([*PROMPT] * 3, params, speculation)  # its output lies behind the broken place
    events = finish(running)
    (failure,) = [event for event in events if event.finish_reason == "error"]
    assert failure.request_id == victim.request_id
    assert failure.tokens == ()
    assert f"output token {BAD - len(PROMPT)}" in failure.error
    assert victim.finish_reason == "error"
    assert len(victim.tokens) == BAD  # what was right before the broken place is emitted, as without a draft
    assert short.output == plain(good, PROMPT, SamplingParams(max_tokens=BAD - len(PROMPT)))
    assert long.num_output == COUNT
    if rule is Rule.MATCH:
        assert victim.output == plain(good, PROMPT, params)[: victim.num_output]
        assert long.output == plain(good, [*PROMPT] * 3, params)
        with pytest.raises(GenerationError, match=f"output token {BAD - len(PROMPT)}"):
            plain(target, PROMPT, params)
    assert_idle(running)


def test_a_row_that_is_never_visited_may_hold_anything() -> None:
    good, params = decoder(), SamplingParams(max_tokens=6)
    wrong = scripted.wrong_at(SameText([*PROMPT, *plain(good, PROMPT, SamplingParams(max_tokens=20))]), 0, VOCAB)
    running = engine(Altered(good, broken(float("nan"))), [ScriptedDrafter(wrong)], Fixed(8))
    (request,) = running.submit(PROMPT, params)
    finish(running)
    assert request.output == plain(good, PROMPT, params)


class Nothing:
    """A mask that allows `count` more tokens, then none."""

    def __init__(self, count: int) -> None:
        self._count = count

    def allowed(self) -> np.ndarray:
        return np.full(VOCAB, self._count > 0)

    def child(self, token: int) -> "Nothing":
        return Nothing(self._count - 1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_mask_that_allows_nothing_more_is_an_error_too(count: int, temperature: float) -> None:
    target, params = decoder(), SamplingParams(temperature=temperature, seed=1, max_tokens=COUNT)
    running = engine(target, [DraftModel(target, VOCAB)], Fixed(2))
    (request,) = running.submit(PROMPT, params, mask=Nothing(count))
    (neighbour,) = running.submit(PROMPT, params)
    events = finish(running)
    assert [event.request_id for event in events if event.error] == [request.request_id]
    assert request.output == plain(target, PROMPT, params)[: request.num_output]
    assert request.num_output == count
    assert neighbour.output == plain(target, PROMPT, params)


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_a_stop_before_a_broken_place_is_an_ordinary_end(count: int) -> None:
    target, params = decoder(), SamplingParams(temperature=1.0, seed=1, max_tokens=COUNT)
    full = plain(target, PROMPT, params)
    script = scripted.all_right(SameText([*PROMPT, *full]))
    for drafters in ([], [ScriptedDrafter(script, past_stops=True)]):
        running = engine(target, drafters, Fixed(5))
        asked = replace(params, stop_token_ids=[full[count - 1]], logprobs=1)
        (request,) = running.submit(PROMPT, asked, mask=Nothing(count))
        events = finish(running)
        assert request.finish_reason == "stop"
        assert request.output == full[:count]
        assert sum(len(event.logprobs) for event in events) == sum(len(event.provenance) for event in events) == count


def test_banning_every_token_is_an_error_of_that_request() -> None:
    running = engine(decoder(), [DraftModel(decoder(), VOCAB)], Fixed(2))
    (request,) = running.submit(PROMPT, SamplingParams(bad_words=[[token] for token in range(VOCAB)]))
    (event,) = finish(running)
    assert event.finish_reason == request.finish_reason == "error"
    assert "every token is banned" in event.error


# -- refused before they are queued ------------------------------------------------------------------------------------


def test_what_cannot_be_served_is_refused_by_name_and_nothing_is_queued() -> None:
    running = engine(decoder(), [DraftModel(decoder(), VOCAB)], Fixed(2))
    refusals = [
        ("empty", InvalidRequestError, {"prompt": []}),
        ("token id 64", InvalidRequestError, {"prompt": [1, VOCAB]}),
        ("token id -1", InvalidRequestError, {"prompt": [-1]}),
        ("tokenizer", UnsupportedError, {"params": SamplingParams(stop=["x"])}),
        ("suffix", InvalidRequestError, {"speculation": Speculation(drafters=("suffix",))}),
        ("logit_bias", InvalidRequestError, {"params": SamplingParams(logit_bias={VOCAB: 1.0})}),
        ("bad_words", InvalidRequestError, {"params": SamplingParams(bad_words=[[1], [VOCAB]])}),
        ("stop_token_ids", InvalidRequestError, {"params": SamplingParams(stop_token_ids=[VOCAB], n=3)}),
    ]
    for word, kind, asked in refusals:
        with pytest.raises(kind, match=word):
            running.submit(**({"prompt": PROMPT} | asked))
    from outrider.core.params import Draw

    with pytest.raises(UnsupportedError, match=r"SHARED_NOISE.*TOKEN"):
        running.submit(PROMPT, None, Speculation(rule=Rule.TOKEN, draw=Draw.SHARED_NOISE))
    with pytest.raises(UnsupportedError, match=r"WITHOUT_REPLACEMENT.*BLOCK"):
        running.submit(PROMPT, None, Speculation(rule=Rule.BLOCK, draw=Draw.WITHOUT_REPLACEMENT))
    with pytest.raises(UnsupportedError, match=r"IID.*TRAVERSAL"):
        running.submit(PROMPT, None, Speculation(rule=Rule.TRAVERSAL, draw=Draw.IID))
    with pytest.raises(UnsupportedError, match=r"tree 2x8.*BLOCK"):
        running.submit(PROMPT, None, Speculation(rule=Rule.BLOCK, tree="2x8"))
    assert_idle(running)


# -- drafters that fail ------------------------------------------------------------------------------------------------


class Faulty:
    """Raises where it is told to."""

    name, needs, state_bytes = "faulty", Needs(), 0

    def __init__(self, verb: str, after: int = 0) -> None:
        self._verb, self._left = verb, after

    def _call(self, verb: str) -> None:
        if verb == self._verb:
            self._left -= 1
            if self._left < 0:
                raise RuntimeError(f"no {verb} today")

    def begin(self, request_id: str, tokens: Sequence[int]) -> None:
        self._call("begin")

    def propose(self, contexts: Sequence[DraftContext]) -> list[Proposal]:
        self._call("propose")
        counts = [context.budget(self.name) for context in contexts]
        return [Proposal.chain([1] * count, source=self.name, confidence=[0.01] * count) for count in counts]

    def observe(self, request_id: str, kept: Kept, observation: Observation) -> float | None:
        self._call("observe")
        return None

    def end(self, request_id: str) -> None:
        self._call("end")

    def drop(self, request_id: str) -> None:
        self._call("drop")

    def load(self) -> None:
        pass

    def unload(self) -> None:
        pass


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("verb", ["begin", "propose", "observe", "end", "drop"])
def test_a_drafter_that_raises_loses_its_turn_and_not_the_request(verb: str, after: int) -> None:
    target, params = decoder(), SamplingParams(max_tokens=60)
    running = engine(target, [Faulty(verb, after), DraftModel(target, VOCAB)], Fixed(3), cache_tokens=96, max_nodes=4)
    prompts = [PROMPT, (7, 8, 9), tuple(range(30))]
    requests = [running.submit(prompt, params)[0] for prompt in prompts]
    finish(running)
    for prompt, request in zip(prompts, requests, strict=True):
        assert request.output == plain(target, prompt, params)
        assert request.stats.accepted_by["draft_model"] > 0
    assert running.drafters.num_failures["draft_model"] == 0
    assert running.drafters.num_failures["faulty"] >= (after == 0)
    assert_idle(running)


class Rambling(Faulty):
    """Proposes what no plan asked for: too much, too deep, out of order, of the wrong width."""

    def __init__(self, proposal: Proposal) -> None:
        super().__init__("never")
        self._proposal = proposal

    def propose(self, contexts: Sequence[DraftContext]) -> list[Proposal]:
        return [self._proposal for _ in contexts]


@pytest.mark.parametrize(
    "proposal",
    [
        Proposal.chain([1] * 200, source="faulty"),
        Proposal.chain([VOCAB + 5], source="faulty"),
        Proposal.chain([1, 2], source="faulty", confidence=[1.0]),
        Proposal(np.asarray([1, 2]), np.asarray([1, -1]), np.zeros(2, np.int64), ("faulty",) * 2, np.ones(2)),
        None,
    ],
)
def test_absurd_proposals_never_reach_the_target(proposal: Proposal | None) -> None:
    target, params = decoder(), SamplingParams(max_tokens=COUNT)
    running = engine(target, [Rambling(proposal)], Fixed(3))
    (request,) = running.submit(PROMPT, params)
    finish(running)
    assert request.output == plain(target, PROMPT, params)
    assert running.drafters.num_failures["faulty"] > 0


class Greedy:
    """A policy that plans more than there is room for."""

    def choose(self, views: Sequence[Any]) -> list[Plan]:
        return [Plan((("scripted", 500),), 500, 4) for _ in views]

    def admit(self, shapes: Sequence[Any], views: Sequence[Any]) -> list[Any]:
        return [np.arange(len(shape.parents)) for shape in shapes]

    def update(self, outcome: Any) -> None:
        pass

    def forget(self, request_id: str) -> None:
        pass


def test_a_policy_that_asks_for_too_much_gets_what_there_is_room_for() -> None:
    target = decoder(context_length=64)
    text = [*PROMPT, *plain(target, PROMPT, SamplingParams())]
    for script in (scripted.all_right(SameText(text + text)), scripted.deep_tree(SameText(text + text), 3, 1, VOCAB)):
        running = engine(target, [ScriptedDrafter(script)], Greedy(), max_nodes=9)
        (request,) = running.submit(PROMPT)
        finish(running)
        assert request.tokens == text
        assert request.stats.drafted <= 9 * request.stats.steps


@pytest.mark.parametrize("make", [lambda: Fixed(4, ["typo"]), lambda: Heuristic(2, 4, ["ngram", "typo"])])
def test_a_policy_that_names_a_drafter_nobody_loaded_is_refused(make: Callable[[], Policy]) -> None:
    with pytest.raises(InvalidRequestError, match="policy names drafter 'typo', which is not loaded; this engine has"):
        engine(decoder(), [NgramDrafter(3, 1)], make())
    with pytest.raises(InvalidRequestError, match="has: none"):
        engine(decoder(), [], make())
    running = engine(decoder(), [NgramDrafter(3, 1)], Fixed(4, ["ngram"]))
    assert run(running, PROMPT, SamplingParams(max_tokens=4)).num_output == 4
