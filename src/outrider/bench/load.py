"""Many prompts at once: how fast an engine is when requests share its passes, with drafts and without.

A draft token takes a row that another request could use, so speculation stops paying at some load; here that load is
found. This module knows engines and clocks. Invariant: at most so many requests are in the engine as were asked, and a
new one comes as soon as one ends.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from outrider.bench.arms import OFF
from outrider.bench.local import Local, Prompt
from outrider.bench.turns import turn_order
from outrider.core.params import SamplingParams
from outrider.engine.request import Request
from outrider.errors import GenerationError

__all__ = ["Load", "crossover", "curve", "measure_load", "run_loads"]

_TURNS = 2


@dataclass(frozen=True, slots=True)
class Load:
    """All prompts at one concurrency, once.

    Attributes:
        kind: name of the kind of run.
        concurrency: requests at once.
        temperature: how they were sampled.
        turn: which time this was.
        num_tokens: output tokens of all requests.
        seconds: from the first request to the end of the last.
    """

    kind: str
    concurrency: int
    temperature: float
    turn: int
    num_tokens: int
    seconds: float


def measure_load(
    local: Local, kind: str, prompts: Sequence[Prompt], params: SamplingParams, concurrency: int, turn: int
) -> Load:
    """Serve all prompts, so many at once.

    Raises:
        GenerationError: a request failed on the way.
    """
    engine, waiting, num_tokens = local.engines[kind], deque(prompts), 0
    requests: list[Request] = []
    asked = replace(local.asked[kind], scope=f"{concurrency} at once, temperature {params.temperature:g}, {turn}")
    started = time.perf_counter()
    try:
        while waiting or engine.num_unfinished:
            while waiting and engine.num_unfinished < concurrency:
                prompt = waiting.popleft()
                seeded = replace(params, seed=(params.seed or 0) + prompt.number)
                expected = local.prediction(kind, prompt)
                requests += engine.submit(prompt.tokens, seeded, asked, prediction=expected)
            for event in engine.step():
                if event.error is not None:
                    raise GenerationError(event.error)
                num_tokens += len(event.tokens)
    finally:
        for request in requests:
            engine.abort(request)
    seconds = time.perf_counter() - started
    return Load(kind, concurrency, params.temperature, turn, num_tokens, seconds)


def run_loads(
    local: Local,
    prompts: Sequence[Prompt],
    sampling: Sequence[SamplingParams],
    levels: Sequence[int],
    *,
    done: Sequence[Mapping[str, Any]],
    tick: Callable[[], None] = lambda: None,
) -> Iterator[dict[str, Any]]:
    """Measure what is still to be measured, as JSON; the kinds take turns at each level."""
    have = {(d["kind"], d["concurrency"], d["temperature"], d["turn"]) for d in done}
    for params in sampling:
        for level in levels:
            for turn in range(_TURNS):
                for kind in turn_order(local.kinds, turn):
                    if (kind, level, params.temperature, turn) not in have:
                        yield asdict(measure_load(local, kind, prompts, params, level, turn))
                    tick()


def curve(loads: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tokens a second by kind, temperature and concurrency, and their ratio to plain decoding."""
    sums: dict[tuple[str, float, int], tuple[int, float]] = {}
    for load in loads:
        key = load["kind"], load["temperature"], load["concurrency"]
        tokens, seconds = sums.get(key, (0, 0.0))
        sums[key] = tokens + load["num_tokens"], seconds + load["seconds"]
    speed = {key: tokens / seconds for key, (tokens, seconds) in sums.items() if seconds}
    return [
        {
            "kind": kind,
            "temperature": temperature,
            "concurrency": level,
            "tokens_per_second_on": value,
            "tokens_per_second_off": speed[OFF, temperature, level],
            "throughput_ratio": value / speed[OFF, temperature, level],
        }
        for (kind, temperature, level), value in speed.items()
        if kind != OFF and (OFF, temperature, level) in speed
    ]


def crossover(points: Sequence[Mapping[str, Any]]) -> str:
    """Where speculation stops paying, in words.

    Args:
        points: of one kind and temperature, as `curve` gives them.
    """
    ordered = sorted(points, key=lambda point: point["concurrency"])
    losing = [point["concurrency"] for point in ordered if point["throughput_ratio"] < 1]
    levels = [point["concurrency"] for point in ordered]
    if not losing:
        return f"pays at every concurrency tried, up to {levels[-1]}"
    first = losing[0]
    before = [level for level in levels if level < first]
    if not before:
        return f"does not pay at any concurrency from {first} on" if len(losing) == len(levels) else _mixed(losing)
    later = [level for level in levels if level > first and level not in losing]
    return _mixed(losing) if later else f"stops paying between {before[-1]} and {first} requests at once"


def _mixed(losing: Sequence[int]) -> str:
    return f"has no clear crossover: it loses at {', '.join(map(str, losing))} requests at once"
