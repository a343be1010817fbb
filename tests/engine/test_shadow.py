"""Second runs: what they find, what they leave alone and how they are counted."""

from collections.abc import Sequence
from typing import Any

import pytest
from engine_helpers import PROMPT, SameText, Wide, decoder, engine, finish, plain

from outrider.analysis.faults import FAULTS
from outrider.core.params import Rule, SamplingParams, Speculation
from outrider.drafters.scripted import ScriptedDrafter, wrong_half, wrong_half_trees
from outrider.engine.config import EngineConfig
from outrider.engine.engine import Engine
from outrider.engine.shadow import ShadowStats
from outrider.errors import InvalidRequestError
from outrider.policies.fixed import Fixed

TRUSTING = next(fault for fault in FAULTS if fault.name == "the draft is trusted")
PARAMS = SamplingParams(temperature=0.9, seed=5, max_tokens=24)


def shadowed(
    params: Sequence[SamplingParams] = (PARAMS,), rule: Rule = Rule.MATCH, steps: Any = None, **limits: Any
) -> Engine:
    """An engine that has served some requests with a draft that is wrong half of the time."""
    texts = SameText()
    policy = Wide(8, 4, 3) if rule is Rule.MATCH else Fixed(4)
    make = wrong_half_trees if rule is Rule.MATCH else wrong_half
    running = engine(decoder(), [ScriptedDrafter(make(texts, decoder().vocab_size))], policy, **limits)
    if steps is not None:
        running.steps = steps
    for asked in params:
        texts.text = [*PROMPT, *plain(decoder(), PROMPT, asked)]
        running.submit(PROMPT, asked, Speculation(rule=rule))
        finish(running)
    return running


def counts(stats: ShadowStats) -> dict[str, object]:
    names = ("seen", "skipped", "passed_over", "dropped", "checked", "equal", "failed")
    return {name: getattr(stats, name) for name in names if getattr(stats, name)}


def test_texts_that_are_right_are_counted_as_equal() -> None:
    asked = [SamplingParams(temperature=t, seed=s, max_tokens=24) for t in (0.0, 0.9) for s in range(4)]
    running = shadowed(asked, shadow=1.0)
    assert running.stats.accepted > 0
    steps, emitted = running.stats.steps, running.stats.emitted
    while running.run_shadow():
        pass
    assert counts(running.shadow.stats) == {"seen": 8, "checked": 8, "equal": 8}
    assert running.shadow.stats.tokens == emitted
    assert (running.stats.steps, running.stats.emitted) == (steps, emitted)  # the served requests' figures only
    assert running.shadow.num_waiting == 0


def test_a_planted_fault_is_found_with_its_place_and_margin() -> None:
    running = shadowed(steps=TRUSTING.steps, shadow=1.0)
    while running.run_shadow():
        pass
    stats = running.shadow.stats
    assert (stats.checked, stats.equal, stats.diverged) == (1, 0, 1)
    (found,) = stats.divergences
    text = plain(decoder(), PROMPT, PARAMS)
    assert text[found.position] == found.plain != found.served
    assert found.margin is not None
    assert stats.largest_margin == found.margin > 1e-3  # no rounding: these logits are float32
    assert stats.as_dict()["divergences"][0]["position"] == found.position  # type: ignore[index]


@pytest.mark.parametrize("choice", [0, 1, 2])
def test_each_choice_is_compared_with_its_own_noise(choice: int) -> None:
    texts = SameText([*PROMPT, *plain(decoder(), PROMPT, PARAMS, choice=choice)])
    drafter = ScriptedDrafter(wrong_half(texts, decoder().vocab_size))
    running = engine(decoder(), [drafter], Fixed(4), shadow=1.0)
    running.submit(PROMPT, SamplingParams(temperature=0.9, seed=5, max_tokens=24, n=3))
    finish(running)
    while running.run_shadow():
        pass
    assert counts(running.shadow.stats) == {"seen": 3, "checked": 3, "equal": 3}


@pytest.mark.parametrize("rule", [Rule.TOKEN, Rule.BLOCK, Rule.TRAVERSAL, Rule.TYPICAL])
def test_what_keeps_only_the_law_is_skipped_and_counted(rule: Rule) -> None:
    running = shadowed(rule=rule, shadow=1.0)
    assert not running.run_shadow()
    assert counts(running.shadow.stats) == {"seen": 1, "skipped": 1}


def test_greedy_texts_of_every_exact_rule_are_compared() -> None:
    running = shadowed([SamplingParams(max_tokens=24)], rule=Rule.TOKEN, shadow=1.0)
    while running.run_shadow():
        pass
    assert counts(running.shadow.stats) == {"seen": 1, "checked": 1, "equal": 1}


def test_nothing_runs_while_a_request_is_unfinished() -> None:
    running = shadowed(shadow=1.0)
    request = running.submit(PROMPT, PARAMS)[0]
    assert not running.run_shadow()
    assert running.shadow.num_waiting == 1
    running.abort(request)
    assert running.run_shadow()


def test_a_request_in_between_delays_a_second_run_and_changes_nothing() -> None:
    running = shadowed(shadow=1.0)
    for _ in range(3):
        assert running.run_shadow()
    running.submit(PROMPT, PARAMS, Speculation(off=True))
    finish(running)
    while running.run_shadow():
        pass
    assert counts(running.shadow.stats) == {"seen": 1, "checked": 1, "equal": 1}  # what had no drafts is not seen


def test_the_queue_is_bounded_and_the_sample_is_a_sample() -> None:
    many = [SamplingParams(temperature=0.9, seed=s, max_tokens=4) for s in range(40)]
    full = shadowed(many, shadow=1.0, shadow_waiting=3)
    assert counts(full.shadow.stats) == {"seen": 40, "dropped": 37}
    some = shadowed(many, shadow=0.5, shadow_waiting=100).shadow
    assert 10 < some.num_waiting < 30
    assert counts(some.stats) == {"seen": 40, "passed_over": 40 - some.num_waiting}


def test_a_second_run_that_breaks_off_is_counted_and_the_next_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    running = shadowed([PARAMS, SamplingParams(max_tokens=8)], shadow=1.0)
    with monkeypatch.context() as patch:
        patch.setattr(decoder(), "forward", lambda *_: 1 / 0)
        assert running.run_shadow()
    while running.run_shadow():
        pass
    assert counts(running.shadow.stats) == {"seen": 2, "checked": 1, "equal": 1, "failed": 1}


def test_by_default_nothing_is_kept() -> None:
    running = shadowed()
    assert not running.run_shadow()
    assert counts(running.shadow.stats) == {}


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), True, "1"])
def test_a_share_that_is_none_is_refused(share: Any) -> None:
    with pytest.raises(InvalidRequestError, match="shadow is"):
        EngineConfig(shadow=share)
