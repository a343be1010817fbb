"""What Prometheus reads: the engine's sums under the names that vLLM made common, and a few of our own.

The engine's thread copies its sums, this module names them. It does not know requests. Invariants: a counter only
rises, for it is the engine's own sum; a page that cannot be had anew shows the last one, and no answer waits for it.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from outrider.engine.engine import Engine
from outrider.engine.stats import SpecStats
from outrider.engine.worker import Worker
from outrider.errors import StoppedError
from outrider.server.meters import PREFIX

__all__ = ["METRICS", "EngineCollector", "Snapshot", "page"]

_WAIT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine's figures at one moment, between two steps."""

    stats: SpecStats = field(default_factory=SpecStats)
    step_seconds: float = 0.0
    num_running: int = 0
    num_waiting: int = 0
    cache_bytes: int = 0
    cache_usage: float | None = None
    drafter_bytes: int = 0
    drafter_failures: Mapping[str, int] = field(default_factory=dict)
    shadow: Mapping[str, int] | None = None


def take_snapshot(engine: Engine) -> Snapshot:
    """Copy the figures; runs on the engine's thread."""
    running = engine.scheduler.running
    rows = sum(engine.cache.length(request.slot) for request in running if request.slot is not None)
    most = engine.config.cache_tokens
    return Snapshot(
        stats=SpecStats() + engine.stats,
        step_seconds=engine.step_seconds,
        num_running=len(running),
        num_waiting=len(engine.scheduler.waiting),
        cache_bytes=engine.cache.nbytes,
        cache_usage=None if most is None else rows / most,
        drafter_bytes=engine.drafters.state_bytes,
        drafter_failures={name: engine.drafters.num_failures[name] for name in engine.drafters.names},
        shadow=_shadow(engine),
    )


def _shadow(engine: Engine) -> Mapping[str, int] | None:
    """Sums of the part that checks texts without speculation; None where nothing is checked."""
    if engine.config.shadow <= 0:
        return None
    stats = engine.shadow.stats
    return {"checked": stats.checked, "diverged": stats.diverged}


def _counter(stem: str, text: str, value: Any, *labels: str) -> tuple[str, str, Any, tuple[str, ...]]:
    return stem, text, value, labels


METRICS = (
    _counter("spec_decode_num_drafts", "Steps that verified draft tokens.", lambda s: s.drafted_steps),
    _counter("spec_decode_num_draft_tokens", "Draft tokens verified.", lambda s: s.drafted),
    _counter("spec_decode_num_accepted_tokens", "Draft tokens emitted.", lambda s: s.accepted),
    _counter("spec_decode_num_discarded_tokens", "Accepted draft tokens behind a stop.", lambda s: s.discarded),
    _counter("spec_decode_num_rejections", "Steps in which a draft token was refused.", lambda s: s.rejections),
    _counter("spec_decode_num_zero_accept_drafts", "Drafts of which nothing was kept.", lambda s: s.zero_accept_steps),
    _counter(
        "spec_decode_num_accepted_tokens_per_pos", "Accepted by position.", lambda s: dict(s.accepts_at), "position"
    ),
    _counter("spec_decode_num_attempts_per_pos", "Tried by position.", lambda s: dict(s.attempts_at), "position"),
    _counter("spec_decode_drafted_by", "Draft tokens verified, by drafter.", lambda s: dict(s.drafted_by), "drafter"),
    _counter("spec_decode_accepted_by", "Draft tokens emitted, by drafter.", lambda s: dict(s.accepted_by), "drafter"),
    _counter("generation_tokens", "Tokens emitted.", lambda s: s.emitted),
    _counter("target_passes", "Judged passes of requests; emitted tokens over them is tau.", lambda s: s.steps),
)
"""Counters of the engine's sums: stem, help, how they are read, labels."""

_RATES = {
    "spec_decode_acceptance_rate": "Accepted / (accepted + rejections), since the start.",
    "spec_decode_block_efficiency": "Emitted tokens per target pass (tau), since the start.",
    "spec_decode_zero_accept_fraction": "Share of drafts of which nothing was kept, since the start.",
    "spec_decode_coverage": "Share of the steps that drafted, since the start.",
}


class EngineCollector(Collector):
    """Names the figures of the last snapshot.

    Args:
        model: the label of the model.
        worker: for what it counts itself.
    """

    def __init__(self, model: str, worker: Worker) -> None:
        self._model = model
        self._worker = worker
        self.snapshot = Snapshot()

    def collect(self) -> Iterator[Metric]:
        """All metrics of the engine."""
        snapshot = self.snapshot
        for stem, text, read, labels in METRICS:
            yield self._counter(stem, text, read(snapshot.stats), labels)
        stats = snapshot.stats
        other = max(0.0, snapshot.step_seconds - stats.draft_seconds - stats.verify_seconds)
        parts = {"draft": stats.draft_seconds, "verify": stats.verify_seconds, "other": other}
        yield self._counter("engine_seconds", "Time of the engine's steps by part.", parts, ("part",))
        yield self._counter("drafter_failures", "Calls that failed.", snapshot.drafter_failures, ("drafter",))
        yield self._counter("broken_steps", "Steps that broke off.", self._worker.num_broken, ())
        if snapshot.shadow is not None:
            for name, value in snapshot.shadow.items():
                yield self._counter(f"shadow_{name}", f"Texts that were {name} without speculation.", value, ())
        for stem, text in _RATES.items():
            yield self._gauge(stem, text, getattr(stats, stem.removeprefix("spec_decode_")))
        yield self._gauge("num_requests_running", "Choices that run.", snapshot.num_running)
        yield self._gauge("num_requests_waiting", "Choices that wait.", snapshot.num_waiting)
        yield self._gauge("kv_cache_bytes", "Bytes of the target's cache.", snapshot.cache_bytes)
        yield self._gauge("drafter_state_bytes", "Bytes that drafters hold.", snapshot.drafter_bytes)
        if snapshot.cache_usage is not None:
            yield self._gauge(
                "kv_cache_usage_perc", "Share of the cache's tokens in use, 1 is full.", snapshot.cache_usage
            )

    def _counter(self, stem: str, text: str, value: Any, labels: tuple[str, ...]) -> Metric:
        family = CounterMetricFamily(f"{PREFIX}{stem}", text, labels=("model_name", *labels))
        for label, amount in value.items() if labels else ((None, value),):
            family.add_metric((self._model, *([] if label is None else [str(label)])), amount)
        return family

    def _gauge(self, stem: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"{PREFIX}{stem}", text, labels=("model_name",))
        family.add_metric((self._model,), value)
        return family


async def page(worker: Worker, collector: EngineCollector, registry: CollectorRegistry) -> bytes:
    """The page in Prometheus's text format, from a fresh snapshot if the engine gives one soon.

    Always that format: in the newer one, for which Prometheus asks, the client writes `_` for the colon of the names.
    """
    try:
        future = asyncio.wrap_future(worker.call(take_snapshot))
        collector.snapshot = await asyncio.wait_for(future, _WAIT_SECONDS)
    except (TimeoutError, StoppedError):
        pass
    return generate_latest(registry)
