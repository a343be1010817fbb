"""One measured decoding, and the first place at which two texts differ.

A run is what one prompt gave once: its output, its times, its counters. This module knows requests and clocks; it does
not know which runs are compared. Invariants: a run is plain numbers that survive JSON; the step that gave the first
token is no part of decode time, nor are the tokens that came with it.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from outrider.bench.loops import in_loop
from outrider.bench.memory import PeakMemory
from outrider.core.params import SamplingParams, Speculation
from outrider.engine.engine import Engine
from outrider.engine.generate import Generation, collect
from outrider.engine.outbox import TextEvent
from outrider.engine.stats import SpecStats
from outrider.errors import InvalidRequestError

__all__ = ["Run", "first_difference", "margin_at", "measure", "run_from_json", "run_to_json", "seconds_per_token"]


@dataclass(frozen=True, slots=True)
class Run:
    """What one prompt gave once.

    Attributes:
        output: emitted token ids; the text itself where only that is known.
        num_tokens: output tokens.
        num_first: of these, the ones that came with the first.
        first_token_seconds: from the request to its first token.
        decode_seconds: from there to the end.
        gaps: seconds between one chunk and the next.
        finish_reason: "stop" or "length".
        draft_seconds, verify_seconds: of the decode time, what went into drafting and into target passes.
        stats: what speculation did; None where nobody tells.
        num_in_loops: output tokens inside loops of the text; None where only text is known.
        num_accepted_in_loops: of these, the ones that were draft tokens.
        peak_bytes: most memory of its own that the process had; None where the system does not tell.
        counters: how a server's counters changed meanwhile; None where there are none.
    """

    output: tuple[int, ...] | str
    num_tokens: int
    num_first: int
    first_token_seconds: float
    decode_seconds: float
    gaps: tuple[float, ...]
    finish_reason: str | None
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    stats: SpecStats | None = None
    num_in_loops: int | None = None
    num_accepted_in_loops: int | None = None
    peak_bytes: int | None = None
    counters: Mapping[str, float] | None = None

    @property
    def num_decoded(self) -> int:
        """Tokens that came in the decode time."""
        return self.num_tokens - self.num_first

    @property
    def total_seconds(self) -> float:
        """From the request to its end."""
        return self.first_token_seconds + self.decode_seconds


def measure(
    engine: Engine,
    prompt: Sequence[int],
    params: SamplingParams,
    speculation: Speculation,
    *,
    prediction: Sequence[int] | None = None,
    memory: PeakMemory | None = None,
) -> Run:
    """Decode one prompt and give its times and counters.

    Args:
        engine: the engine, idle and warm.
        prompt: token ids.
        params: how tokens are drawn; with a seed where runs are to be compared.
        speculation: how the request may be speculated on.
        prediction: the output that the caller expects; None without.
        memory: a watcher of memory; None measures none.

    Raises:
        OutriderError: the request was refused, or it failed on the way.
    """
    watch = _Watch()
    if memory is not None:
        memory.restart()
    requests = engine.submit(prompt, params, speculation, prediction=prediction)
    (result,) = collect(engine, requests, on_event=watch)
    return _run(result, watch, None if memory is None else memory.peak_bytes())


def seconds_per_token(runs: Sequence[Run]) -> float | None:
    """Decode time over the tokens that came in it, over all runs; None where all tokens came at once."""
    tokens = sum(run.num_decoded for run in runs)
    return sum(run.decode_seconds for run in runs) / tokens if tokens else None


def first_difference(one: Sequence[Any], other: Sequence[Any]) -> int | None:
    """Place of the first token (or letter) that differs; None for equal outputs."""
    if one == other:
        return None
    shared = (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(shared, min(len(one), len(other)))


def margin_at(engine: Engine, prompt: Sequence[int], plain: Run, place: int, params: SamplingParams) -> float | None:
    """Raw log probability of the target's best token at a place of a text, less that of the second.

    A small one says that rounding decided. None where the text fills the context.
    """
    before = [*prompt, *(int(token) for token in plain.output[:place])]
    asked = replace(params, n=1, echo=False, max_tokens=1, min_tokens=min(params.min_tokens, 1), logprobs=2)
    try:
        (result,) = collect(engine, engine.submit(before, asked, Speculation(off=True)))
    except InvalidRequestError:
        return None
    (_, best), (_, second) = result.logprobs[0].top
    return best - second


class _Watch:
    """Notes when chunks come, and what had been spent at the first."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.spent = (0.0, 0.0)

    def __call__(self, event: TextEvent) -> None:
        stats = event.request.stats
        if not self.times:
            self.spent = stats.draft_seconds, stats.verify_seconds
        self.times.append(time.perf_counter())


def _run(result: Generation, watch: _Watch, peak: int | None) -> Run:
    inside = in_loop(result.tokens)
    drafted = np.asarray([who.accepted for who in result.provenance], dtype=np.bool_)
    return Run(
        output=tuple(result.tokens),
        num_tokens=len(result.tokens),
        num_first=result.num_first,
        first_token_seconds=result.first_token_seconds,
        decode_seconds=watch.times[-1] - watch.times[0],
        gaps=tuple(round(gap, 7) for gap in np.diff(watch.times).tolist()),
        finish_reason=result.finish_reason,
        draft_seconds=result.stats.draft_seconds - watch.spent[0],
        verify_seconds=result.stats.verify_seconds - watch.spent[1],
        stats=result.stats,
        num_in_loops=int(inside.sum()),
        num_accepted_in_loops=int((inside & drafted).sum()),
        peak_bytes=peak,
    )


def run_to_json(run: Run) -> dict[str, Any]:
    """A run as JSON holds it."""
    values = {f.name: getattr(run, f.name) for f in fields(Run)}
    return values | {"stats": None if run.stats is None else _plain(run.stats)}


def run_from_json(values: Mapping[str, Any]) -> Run:
    """The run that `run_to_json` wrote.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    output, stats = values["output"], values["stats"]
    known = {f.name: values[f.name] for f in fields(Run)}
    return Run(
        **known
        | {
            "output": output if isinstance(output, str) else tuple(output),
            "gaps": tuple(values["gaps"]),
            "stats": None if stats is None else _stats(stats),
        }
    )


def _plain(stats: SpecStats) -> dict[str, Any]:
    """The sums only: every rate is derived."""
    sums = {f.name: getattr(stats, f.name) for f in fields(stats)}
    return {name: dict(value) if isinstance(value, Counter) else value for name, value in sums.items()}


def _stats(values: Mapping[str, Any]) -> SpecStats:
    """Counters whose keys are numbers became texts in JSON."""
    sums: dict[str, Any] = {
        name: _counter(value) if isinstance(value, dict) else value for name, value in values.items()
    }
    return SpecStats(**sums)


def _counter(values: Mapping[str, int]) -> "Counter[Any]":
    return Counter({int(key) if str(key).isdecimal() else key: count for key, count in values.items()})
