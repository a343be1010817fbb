"""Drafters that need no model, in the engine: what they are told, what they share and what they may not.

Written against vllm-project/vllm#7047 and #14742 (short prompts, empty drafts), ml-explore/mlx-lm PR 1297 (options that
were dropped), vllm-project/vllm#16016 and PR 25784 (texts shared by users), ggml-org/llama.cpp#19231 (drafts only for
the first request) and vllm-project/vllm#40875 (short matches and tool calls).
"""

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from engine_helpers import (
    PROMPT,
    VOCAB,
    Altered,
    Wide,
    assert_idle,
    decoder,
    engine,
    finish,
    plain,
    run,
    table,
)

from outrider.core.params import Rule, SamplingParams, Speculation
from outrider.core.types import Kept
from outrider.drafters.base import Observation
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.prediction import PredictionDrafter
from outrider.drafters.recycling import RecyclingDrafter
from outrider.drafters.registry import build_drafter
from outrider.drafters.scripted import ScriptedDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.engine.judged import top_tokens
from outrider.errors import InvalidRequestError, UnsupportedError
from outrider.models.base import ForwardInputs
from outrider.models.toy import TableTarget
from outrider.policies.fixed import Fixed

FREE = ["ngram", "suffix", "prediction", "recycling"]
LONG = SamplingParams(max_tokens=40)


def cycle(period: int = 11) -> TableTarget:
    """A target that repeats itself for ever."""

    def logits(last: tuple[int, ...]) -> np.ndarray:
        row = np.zeros(VOCAB, dtype=np.float32)
        row[(last[-1] + 1) % period] = 5.0
        return row

    return TableTarget(VOCAB, order=1, logits=logits)


@pytest.mark.parametrize("length", range(1, 7))
@pytest.mark.parametrize("name", FREE)
def test_prompts_of_any_length_without_any_repeat_are_ordinary(name: str, length: int) -> None:
    target, prompt = decoder(), list(range(20, 20 + length))
    running = engine(target, [build_drafter(name)], Wide(6, 6, 2))
    assert run(running, prompt, LONG).output == plain(target, prompt, LONG)
    assert not running.drafters.num_failures


@pytest.mark.parametrize("spec", ["ngram:min=2", "suffix", "suffix:shared=500", "recycling", "recycling:shared=true"])
def test_the_same_request_is_served_alike_each_time(spec: str) -> None:
    running = engine(cycle(), [build_drafter(spec)], Fixed(6))
    steps = [run(running, PROMPT, LONG).stats.steps for _ in range(5)]
    if "shared" in spec:  # what was written before may only help
        assert steps == sorted(steps, reverse=True)
    else:
        assert len(set(steps)) == 1
    assert steps[0] < 25
    assert_idle(running)


@pytest.mark.parametrize(("spec", "word"), [("ngram", "ngram"), ("suffix", "suffix"), ("recycling", "recycling")])
def test_statistics_name_the_drafter_that_was_asked_for(spec: str, word: str) -> None:
    request = run(engine(cycle(), [build_drafter(spec)], Fixed(6)), PROMPT, LONG)
    assert set(request.stats.accepted_by) == {word}


def tags() -> list[int]:
    """A prompt of near-repeats such as opening and closing tags, all slightly different."""
    rng = random.Random(3)
    return [token for number in range(30) for token in (1, 2, 3 + number % 4, 7, rng.randrange(20, 24), 1, 9, 2)]


@pytest.mark.parametrize("shortest", [1, 2, 4])
@pytest.mark.parametrize("name", ["ngram", "suffix"])
def test_short_matches_in_texts_full_of_tags_change_nothing(name: str, shortest: int) -> None:
    target = table()
    running = engine(target, [build_drafter(f"{name}:min={shortest},max=4")], Wide(12, 8, 3))
    for params in (LONG, SamplingParams(temperature=1.0, seed=3, max_tokens=40)):
        assert run(running, tags(), params).output == plain(target, tags(), params)


# -- scopes ------------------------------------------------------------------------------------------------------------


def secret_output(name: str, scopes: Sequence[str]) -> list[int]:
    """Passes that one request after the other takes, each in its scope."""
    target = decoder()
    drafter = SuffixDrafter(shared=1000) if name == "suffix" else RecyclingDrafter(shared=True)
    running = engine(target, [drafter], Wide(8, 8, 2))
    steps = []
    for scope in scopes:
        if scope == "reset a":
            running.drafters.reset("a")
            continue
        request = run(running, PROMPT, LONG, Speculation(scope=scope))
        assert request.output == plain(target, PROMPT, LONG)
        steps.append(request.stats.steps)
    return steps


@pytest.mark.parametrize("name", ["suffix", "recycling"])
def test_what_one_scope_wrote_never_speeds_up_another(name: str) -> None:
    first, again, other, after, none = secret_output(name, ["a", "a", "b", "reset a", "a", ""])
    assert again < first
    assert other == after == none == first


def test_requests_of_two_scopes_in_one_batch_stay_apart() -> None:
    target, drafter = decoder(), SuffixDrafter(shared=1000)
    running = engine(target, [drafter], Fixed(6))
    alone = run(engine(target, [SuffixDrafter()], Fixed(6)), PROMPT, LONG).stats.steps
    run(running, PROMPT, LONG, Speculation(scope="a"))
    mixed = [running.submit(PROMPT, LONG, Speculation(scope=scope))[0] for scope in "ab"]
    finish(running)
    assert mixed[0].stats.steps < alone
    assert mixed[1].stats.steps == alone


@pytest.mark.parametrize("scope", [None, 3, b"a"])
def test_a_scope_is_a_text(scope: object) -> None:
    with pytest.raises(InvalidRequestError, match="scope"):
        Speculation(scope=scope)  # type: ignore[arg-type]


# -- predictions -------------------------------------------------------------------------------------------------------


def test_a_right_prediction_saves_most_passes_and_a_wrong_one_changes_nothing() -> None:
    target = decoder()
    expected = plain(target, PROMPT, LONG)
    running = engine(target, [PredictionDrafter()], Fixed(15))
    right = running.submit(PROMPT, LONG, prediction=expected)[0]
    wrong = running.submit(PROMPT, LONG, prediction=[63] * 40)[0]
    without = running.submit(PROMPT, LONG)[0]
    finish(running)
    assert right.output == wrong.output == without.output == expected
    assert right.stats.steps <= 4
    assert without.stats.drafted == 0
    assert wrong.stats.drafted < 200


@pytest.mark.parametrize("rule", Rule)
def test_predictions_serve_every_rule(rule: Rule) -> None:
    target = decoder()
    running = engine(target, [PredictionDrafter()], Fixed(8))
    expected = plain(target, PROMPT, LONG)
    request = running.submit(PROMPT, LONG, Speculation(rule=rule), prediction=expected)[0]
    finish(running)
    assert request.output == expected
    assert request.stats.steps < 10


def test_every_choice_follows_the_prediction() -> None:
    target, params = decoder(), SamplingParams(max_tokens=20, n=2)
    running = engine(target, [PredictionDrafter()], Fixed(8))
    requests = running.submit(PROMPT, params, prediction=plain(target, PROMPT, LONG))
    finish(running)
    assert [request.stats.steps for request in requests] == [3, 3]


def test_a_preempted_request_finds_its_place_in_the_prediction_again() -> None:
    target, params = decoder(), SamplingParams(max_tokens=60)
    expected = plain(target, PROMPT, params)
    running = engine(target, [PredictionDrafter(), SuffixDrafter()], Fixed(3), cache_tokens=96, max_nodes=4)
    requests = [running.submit(PROMPT, params, prediction=expected)[0] for _ in range(3)]
    preempted = []
    finish(running, lambda: preempted.extend(running.scheduler.preempted))
    assert preempted
    for request in requests:
        assert request.output == expected
        assert request.stats.accepted_by["prediction"] > 30


@pytest.mark.parametrize(
    ("prediction", "sentence"),
    [
        ("some text", "prediction is of the type str; give the expected output as a list of token ids."),
        (7, "prediction is of the type int"),
        ({1, 2}, "prediction is of the type set"),
        ([1, VOCAB], f"prediction holds {VOCAB}; give token ids from 0 to {VOCAB - 1}."),
        ([1, -1], "prediction holds -1"),
        ([1.5], "prediction holds 1.5"),
        ([True], "prediction holds True"),
        (["a"], "prediction holds 'a'"),
        ([1] * 513, "prediction has 513 tokens, but no output can be longer than the context of 512; shorten it."),
    ],
)
def test_what_is_no_prediction_is_refused_in_one_sentence(prediction: object, sentence: str) -> None:
    running = engine(decoder(), [PredictionDrafter()])
    with pytest.raises(InvalidRequestError) as caught:
        running.submit(PROMPT, LONG, prediction=prediction)  # type: ignore[arg-type]
    assert sentence in str(caught.value)
    assert_idle(running)


def test_a_prediction_that_nobody_follows_is_refused() -> None:
    running = engine(decoder(), [NgramDrafter()])
    with pytest.raises(UnsupportedError, match=r"drafters \(ngram\) follows one; add the drafter prediction"):
        running.submit(PROMPT, LONG, prediction=[1])
    assert_idle(running)


# -- the target's first ranks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [10, 255, 8192, 8193, 20_000])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_top_tokens_are_those_of_a_full_sort(width: int, count: int) -> None:
    rows = torch.randn(5, width, generator=torch.Generator().manual_seed(width + count))
    rows[0, -1] = 99.0
    rows[1, -count:] = 50.0 + torch.arange(count)
    assert torch.equal(top_tokens(rows, count), rows.topk(count).indices)
    tied = torch.zeros(2, width)
    assert len(set(top_tokens(tied, count)[0].tolist())) == count


class Recorder(RecyclingDrafter):
    """Keeps what it is shown."""

    def __init__(self) -> None:
        super().__init__(3)
        self.shown: list[tuple[Kept, Observation]] = []

    def observe(self, request_id: str, kept: Kept, observation: Observation) -> float | None:
        self.shown.append((kept, observation))
        return super().observe(request_id, kept, observation)


def test_recycling_is_shown_the_ranks_of_refused_nodes_too() -> None:
    seen: list[torch.Tensor] = []

    def watch(inputs: ForwardInputs, logits: torch.Tensor) -> torch.Tensor:
        seen.append(logits)
        return logits

    recorder = Recorder()
    request = run(engine(Altered(decoder(), watch), [recorder], Wide(8, 8, 3)), PROMPT, LONG)
    assert request.stats.rejected > 0
    assert len(recorder.shown) == len(seen)
    for (_, observation), logits in zip(recorder.shown, seen, strict=True):
        assert torch.equal(observation.top_tokens, logits.topk(3).indices)
        assert len(observation.row_tokens) == len(logits)


# -- several drafters --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 3])
def test_several_free_drafters_are_as_good_as_the_best_of_them(width: int) -> None:
    target, params = cycle(17), SamplingParams(max_tokens=60)
    expected = plain(target, PROMPT, params)
    steps = {}
    for names in (["ngram"], ["recycling"], ["prediction"], ["recycling", "ngram", "suffix", "prediction"]):
        running = engine(target, [build_drafter(name) for name in names], Wide(8, 8, width))
        prediction = expected if "prediction" in names else None
        request = running.submit(PROMPT, params, prediction=prediction)[0]
        finish(running)
        assert request.output == expected
        assert not running.drafters.num_failures
        steps["+".join(names)] = request.stats.steps
    *single, together = steps.values()
    assert together <= min(single) + 1


def test_a_failing_neighbour_does_not_disturb_a_free_drafter() -> None:
    target = cycle()

    def broken(*_: object) -> None:
        raise RuntimeError("no draft today")

    running = engine(target, [ScriptedDrafter(broken, name="broken"), SuffixDrafter()], Fixed(6))  # type: ignore[arg-type]
    request = run(running, PROMPT, LONG)
    assert request.output == plain(target, PROMPT, LONG)
    assert request.stats.accepted_by["suffix"] > 20
