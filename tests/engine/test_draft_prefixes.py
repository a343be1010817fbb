"""A draft model takes over what it has read already, within a scope, and drafts what it would have drafted."""

from typing import Any

import pytest
from engine_helpers import VOCAB, assert_idle, decoder, engine, finish, plain

from outrider.core.params import Rule, SamplingParams, Speculation
from outrider.drafters.draft_model import DraftModel
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.policies.fixed import Fixed

PARAMS = SamplingParams(max_tokens=12, temperature=0.9, seed=3)
FIRST = [(7 * place + place * place) % VOCAB for place in range(80)]


class Counting:
    """A model that notes how many rows it reads."""

    def __init__(self, seed: int = 2) -> None:
        self._model = decoder(seed, layers=1)
        self.rows = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, inputs: Any, cache: Any) -> Any:
        self.rows += len(inputs.token_ids)
        return self._model.forward(inputs, cache)


def made(**config: Any) -> tuple[Engine, Counting]:
    model = Counting()
    return engine(decoder(), [DraftModel(model, VOCAB)], Fixed(3), **config), model  # type: ignore[arg-type]


def ask(running: Engine, prompt: list[int], scope: str = "", rule: Rule = Rule.MATCH) -> Request:
    (request,) = running.submit(prompt, PARAMS, Speculation(scope=scope, rule=rule))
    finish(running)
    return request


@pytest.mark.parametrize("rule", [Rule.MATCH, Rule.TOKEN])
def test_a_second_turn_is_not_read_again_and_drafts_the_same(rule: Rule) -> None:
    running, model = made()
    first = ask(running, FIRST, rule=rule)
    turn = [*first.tokens, 9, 8, 7]
    model.rows = 0
    warm = ask(running, turn, rule=rule)
    rows = model.rows
    fresh_engine, fresh_model = made(prefix_tokens=0)
    fresh = ask(fresh_engine, turn, rule=rule)
    assert fresh_model.rows - rows >= len(FIRST)
    assert warm.output == fresh.output
    assert warm.stats.accepts_at == fresh.stats.accepts_at
    assert warm.stats.drafted == fresh.stats.drafted
    if rule is Rule.MATCH:
        assert warm.output == plain(decoder(), turn, PARAMS)
    assert_idle(running)
    assert running.drafters.state_bytes == 0


def test_a_draft_model_whose_rows_are_gone_reads_the_text_again_and_drafts_as_when_cold() -> None:
    """The target's rows of the first turn are kept, the draft model's are not."""
    running, model = made()
    first = ask(running, FIRST)
    turn = [*first.tokens, 9, 8, 7]
    running.drafters.forget_prefixes(None)
    model.rows = 0
    warm = ask(running, turn)
    assert warm.num_reused >= len(FIRST)
    assert model.rows >= len(turn)
    cold = ask(made(prefix_tokens=0)[0], turn)
    assert warm.output == cold.output
    assert (warm.stats.drafted, warm.stats.accepts_at) == (cold.stats.drafted, cold.stats.accepts_at)


def test_only_the_same_scope_shares() -> None:
    running, model = made()
    ask(running, FIRST, "mine")
    model.rows = 0
    ask(running, [*FIRST, 5], "yours")
    assert model.rows > len(FIRST)
    running.forget_prefixes("yours")
    model.rows = 0
    ask(running, [*FIRST, 5], "yours")
    assert model.rows > len(FIRST)
    model.rows = 0
    ask(running, [*FIRST, 6], "mine")
    assert model.rows < len(FIRST)


def test_choices_share_the_prompt_with_each_other() -> None:
    running, model = made()
    params = SamplingParams(max_tokens=12, temperature=0.9, seed=3, n=4)
    requests = running.submit(FIRST, params)
    finish(running)
    assert model.rows < 2 * len(FIRST) + 4 * 12 * 4
    for choice, request in enumerate(requests):
        assert request.output == plain(decoder(), FIRST, params, choice=choice)


def test_kept_rows_make_room_for_drafts() -> None:
    running, _ = made(cache_tokens=128)
    for step in range(2, 9):
        text = [(step * place + 1) % VOCAB for place in range(90)]
        request = ask(running, text)
        assert request.output == plain(decoder(), text, PARAMS)
        assert request.stats.drafted > 0, "rows of an earlier text were in the way"
    assert not running.drafters.num_failures
    assert_idle(running)
    assert running.drafters.state_bytes == 0
