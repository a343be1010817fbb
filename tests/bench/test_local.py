from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from outrider.bench.arms import OFF, plan_arms
from outrider.bench.load import crossover, curve, measure_load, run_loads
from outrider.bench.local import Local, Prompt
from outrider.bench.loops import in_loop
from outrider.bench.memory import PeakMemory
from outrider.bench.rounds import Round
from outrider.bench.runs import measure
from outrider.core.params import Rule, SamplingParams, Speculation
from outrider.engine.reference import reference_generate
from outrider.errors import GenerationError, InvalidRequestError
from outrider.models.loading import LoadedModel

PROMPTS = [Prompt("abc"[n], "xxy"[n], [1, 2, 3, 4, 1, 2, 3, 4 + n], None, n) for n in range(3)]
SAMPLING = [SamplingParams(temperature=t, seed=10, max_tokens=30) for t in (0.0, 0.8)]
ARMS = plan_arms(["ngram:min=1"], [2, 5], None)


@pytest.fixture(scope="module")
def local(loaded: LoadedModel) -> Local:
    return Local(loaded, ARMS, Rule.MATCH)


@pytest.fixture(scope="module")
def rounds(local: Local) -> list[Round]:
    with PeakMemory() as memory:
        return list(local.rounds(PROMPTS, SAMPLING, done=set(), memory=memory))


def test_each_prompt_runs_at_each_temperature_with_all_kinds(rounds: list[Round]) -> None:
    assert [r.key for r in rounds] == [(name, t) for t in (0.0, 0.8) for name in "abc"]
    for measured in rounds:
        assert list(measured.runs) == [OFF, "ngram:min=1 length 2", "ngram:min=1 length 5"]
        assert sorted(measured.order) == sorted(measured.runs)
    assert rounds[0].order == tuple(rounds[0].runs)
    assert rounds[1].order == tuple(reversed(rounds[0].order))


def test_all_kinds_give_the_plain_text_of_the_prompt_s_seed(rounds: list[Round], loaded: LoadedModel) -> None:
    for measured, (params, prompt) in zip(rounds, ((s, p) for s in SAMPLING for p in PROMPTS), strict=True):
        seeded = replace(params, seed=10 + prompt.number)
        plain = reference_generate(loaded.target, prompt.tokens, seeded)
        assert measured.seed == 10 + prompt.number
        assert [run.output for run in measured.runs.values()] == [tuple(plain)] * 3
        assert not measured.divergences


def test_lengths_are_what_was_asked_and_plain_runs_draft_nothing(rounds: list[Round]) -> None:
    for measured in rounds:
        plain, short, long = (run.stats for run in measured.runs.values())
        assert plain is not None
        assert short is not None
        assert long is not None
        assert (plain.drafted, plain.steps) == (0, 30)
        assert max(short.attempts_at, default=0) <= 1
        assert max(long.attempts_at, default=0) <= 4
    assert any(run.stats.accepted for r in rounds for kind, run in r.runs.items() if kind != OFF and run.stats)


def test_times_add_up(rounds: list[Round]) -> None:
    for run in (run for measured in rounds for run in measured.runs.values()):
        assert run.stats is not None
        assert run.num_tokens == len(run.output) == 30
        assert run.decode_seconds == pytest.approx(sum(run.gaps), abs=1e-5)
        assert len(run.gaps) == run.stats.steps - 1
        assert 0 <= run.draft_seconds < run.stats.draft_seconds + 1e-9
        assert 0 < run.verify_seconds < run.stats.verify_seconds
        assert run.draft_seconds + run.verify_seconds < run.decode_seconds
        assert run.peak_bytes is None or run.peak_bytes > 0


def test_accepted_tokens_in_loops_are_counted_by_who_wrote_them(local: Local) -> None:
    params = SamplingParams(max_tokens=100, repetition_penalty=1e-6)  # says the same again and again
    run = measure(local.engines["ngram:min=1 length 5"], [5, 6, 7], params, Speculation(length=5))
    assert not isinstance(run.output, str)
    assert run.num_in_loops == in_loop(run.output).sum() > 50
    assert run.stats is not None
    assert 0 < (run.num_accepted_in_loops or 0) <= min(run.stats.accepted, run.num_in_loops or 0)


def test_a_text_that_parts_is_found_with_its_place_and_margin(loaded: LoadedModel) -> None:
    local = Local(loaded, ARMS[:1], Rule.MATCH)
    name = ARMS[0].name
    engine, submit = local.engines[name], local.engines[name].submit

    def faulty(prompt: Sequence[int], params: SamplingParams, asked: Speculation, **more: object) -> list[object]:
        return submit(prompt, replace(params, logit_bias={first.output[5]: -50.0}, min_tokens=0), asked)

    (first,) = (r.runs[OFF] for r in local.rounds(PROMPTS[:1], SAMPLING[:1], done=set()))
    engine.submit = faulty  # type: ignore[method-assign, assignment]
    (measured,) = local.rounds(PROMPTS[:1], SAMPLING[:1], done=set())
    where = measured.divergences[name]
    assert where.place == first.output.index(first.output[5])
    logits = _logits(loaded, [*PROMPTS[0].tokens, *first.output[: where.place]])
    best, second, *_ = sorted(logits, reverse=True)
    assert where.margin == pytest.approx(best - second, abs=1e-4)


def _logits(loaded: LoadedModel, tokens: Sequence[int]) -> list[float]:
    from outrider.engine.engine import Engine
    from outrider.engine.generate import collect

    plain = Engine(loaded.target)
    params = SamplingParams(max_tokens=1, logprobs=20)
    return [value for _, value in collect(plain, plain.submit(tokens, params))[0].logprobs[0].top]


def test_what_is_done_is_not_measured_again(local: Local) -> None:
    ticks: list[int] = []
    done = {("a", 0.0), ("b", 0.0), ("a", 0.8), ("b", 0.8), ("c", 0.8)}
    left = list(local.rounds(PROMPTS, SAMPLING, done=done, tick=lambda: ticks.append(1)))
    assert ([r.key for r in left], ticks) == ([("c", 0.0)], [1])
    assert not list(local.rounds(PROMPTS, SAMPLING, done=done | {("c", 0.0)}))


def test_a_request_that_fails_leaves_the_engine_usable(loaded: LoadedModel) -> None:
    local = Local(loaded, ARMS[:1], Rule.MATCH)
    banned = SamplingParams(max_tokens=5, seed=1, bad_words=[[token] for token in range(64)])
    with pytest.raises(GenerationError, match="not finite or every token is banned"):
        list(local.rounds(PROMPTS, [banned], done=set()))
    with pytest.raises(GenerationError, match="not finite or every token is banned"):
        measure_load(local, OFF, PROMPTS, banned, 2, 0)
    assert all(engine.num_unfinished == 0 for engine in local.engines.values())
    assert len(list(local.rounds(PROMPTS[:1], SAMPLING[:1], done=set()))) == 1


@pytest.mark.parametrize(
    ("drafters", "lengths", "policy", "words"),
    [
        (["ngrm"], [], None, "'ngrm' does not exist"),
        (["ngram", "ngram"], [], None, "'ngram' is to be measured twice"),
        (["ngram"], [4], "fixd", "'fixd' does not exist"),
    ],
)
def test_arms_that_cannot_be_meant(drafters: list[str], lengths: list[int], policy: str | None, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        plan_arms(drafters, lengths, policy)


def test_a_length_is_fixed_unless_a_policy_is_named() -> None:
    assert [arm.policy for arm in plan_arms(["ngram"], [4, 8], None)] == ["fixed:length=4", "fixed:length=8"]
    assert [(arm.policy, arm.length) for arm in plan_arms(["ngram"], [4], "heuristic")] == [("heuristic", 4)]
    assert [(arm.policy, arm.length) for arm in plan_arms(["none"], [], None)] == [("heuristic", None)]


def test_each_tree_is_measured(loaded: LoadedModel) -> None:
    arms = plan_arms(["recycling"], [3], None, ["1x3", "3x8"])
    assert [arm.name for arm in arms] == ["recycling length 3 tree 1x3", "recycling length 3 tree 3x8"]
    with pytest.raises(InvalidRequestError, match="is to be measured twice"):
        plan_arms(["recycling"], [], None, ["2x4", "2x4"])
    local = Local(loaded, arms, Rule.MATCH)
    (measured,) = local.rounds(PROMPTS[:1], SAMPLING[:1], done=set())
    chain, tree = (measured.runs[arm.name].stats for arm in arms)
    assert chain is not None
    assert tree is not None
    assert 0 < chain.drafted <= 3 * chain.drafted_steps
    assert 3 * tree.drafted_steps < tree.drafted <= 8 * tree.drafted_steps
    assert not measured.divergences


# -- many at once --------------------------------------------------------------------------------------------------


def test_loads_serve_every_prompt_at_every_level_by_turns(local: Local) -> None:
    loads = list(run_loads(local, PROMPTS, SAMPLING[:1], [1, 3], done=[]))
    assert [(d["concurrency"], d["turn"]) for d in loads] == [(c, t) for c in (1, 3) for t in (0, 1) for _ in range(3)]
    assert [d["kind"] for d in loads[:6]] == [*local.kinds, *reversed(local.kinds)]
    assert {d["num_tokens"] for d in loads} == {90}
    assert not list(run_loads(local, PROMPTS, SAMPLING[:1], [1, 3], done=loads))
    points = curve(loads)
    assert {(p["kind"], p["concurrency"]) for p in points} == {(arm.name, c) for arm in ARMS for c in (1, 3)}
    for point in points:
        spent = {k: sum(d["seconds"] for d in loads if (d["kind"], d["concurrency"]) == (k, point["concurrency"]))
                 for k in (OFF, point["kind"])}  # fmt: skip
        assert point["throughput_ratio"] == pytest.approx(spent[OFF] / spent[point["kind"]])


def test_never_more_requests_than_asked_are_at_work(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, sizes = local.engines[OFF], []
    step = engine.step
    monkeypatch.setattr(engine, "step", lambda: (sizes.append(engine.num_unfinished), step())[1])
    measure_load(local, OFF, PROMPTS, replace(SAMPLING[0], max_tokens=4), 2, 0)
    assert sizes == [2] * 4 + [1] * 4


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ({1: 1.5, 4: 1.2, 8: 0.9, 16: 0.8}, "stops paying between 4 and 8 requests at once"),
        ({1: 1.5, 4: 1.2}, "pays at every concurrency tried, up to 4"),
        ({1: 0.9, 4: 0.8}, "does not pay at any concurrency from 1 on"),
        ({1: 1.5, 4: 0.9, 8: 1.1}, "has no clear crossover: it loses at 4"),
        ({1: 0.9, 4: 1.1}, "has no clear crossover: it loses at 1"),
    ],
)
def test_the_crossover_is_named(ratios: dict[int, float], words: str) -> None:
    points = [{"concurrency": level, "throughput_ratio": ratio} for level, ratio in reversed(ratios.items())]
    assert words in crossover(points)


def test_chunks_come_one_a_step(rounds: list[Round]) -> None:
    for one, other in pairwise(rounds[0].runs.values()):
        assert one.stats is not None
        assert other.stats is not None
        assert len(one.gaps) >= len(other.gaps)


# -- what drafters know ------------------------------------------------------------------------------------------------


def test_predictions_reach_the_arms_that_follow_them_only(loaded: LoadedModel) -> None:
    local = Local(loaded, plan_arms(["prediction", "ngram"], [4], None), Rule.MATCH)
    prompt = PROMPTS[0]
    plain = reference_generate(loaded.target, prompt.tokens, replace(SAMPLING[0], max_tokens=30))
    (measured,) = local.rounds([replace(prompt, prediction=plain)], SAMPLING[:1], done=set())
    follows, copies = measured.runs["prediction length 4"].stats, measured.runs["ngram length 4"].stats
    assert follows is not None
    assert copies is not None
    assert follows.accepted_fraction > 0.9
    assert follows.accepted >= 20
    assert set(copies.drafted_by) <= {"ngram"}
    assert not measured.divergences


def test_no_drafter_has_seen_the_text_before(loaded: LoadedModel) -> None:
    local = Local(loaded, plan_arms(["suffix:shared=1000"], [4], None), Rule.MATCH)
    both = [replace(SAMPLING[0], temperature=t) for t in (0.0, 1e-6)]  # both greedy: the same texts twice
    first, again = local.rounds(PROMPTS[:1], both, done=set())
    name = "suffix:shared=1000 length 4"
    one, other = first.runs[name], again.runs[name]
    assert one.output == other.output
    assert one.stats is not None
    assert other.stats is not None
    assert one.stats.steps == other.stats.steps
    assert one.stats.accepted == other.stats.accepted < 20
