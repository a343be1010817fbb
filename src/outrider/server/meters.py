"""What the server itself measures: times of requests, how they ended.

This module knows Prometheus; it does not know the engine. Invariant: measuring never stops an answer; counters only
rise.
"""

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec

from prometheus_client import CollectorRegistry, Counter, Histogram

__all__ = ["PREFIX", "Meters"]

logger = logging.getLogger(__name__)

PREFIX = "outrider:"
_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1)
_WHOLE = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)


_Given = ParamSpec("_Given")


def _harmless(measure: Callable[_Given, None]) -> Callable[_Given, None]:
    """A measurement that fails is logged, and that is all."""

    @functools.wraps(measure)
    def try_it(*given: _Given.args, **named: _Given.kwargs) -> None:
        try:
            measure(*given, **named)
        except Exception:
            logger.exception("a measurement failed")

    return try_it


class Meters:
    """Histograms and counters of one server.

    Args:
        registry: where they are listed.
        model: the label of the model.
    """

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        label = ("model_name",)

        def seconds(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"{PREFIX}{name}", text, label, buckets=buckets, registry=registry).labels(model)

        self._first = seconds("time_to_first_token_seconds", "From the request to the first token of a choice.", _FIRST)
        self._per_token = seconds(
            "request_time_per_output_token_seconds", "Decode time of a choice over the tokens that came in it.", _TOKEN
        )
        self._whole = seconds("e2e_request_latency_seconds", "From the request to the end of a choice.", _WHOLE)
        self._ends = Counter(
            f"{PREFIX}request_success",
            "Choices that ended, by reason.",
            (*label, "finished_reason"),
            registry=registry,
        )
        self._answers = Counter(
            f"{PREFIX}http_requests", "Answers, by path and status.", (*label, "path", "status"), registry=registry
        )
        self._model = model

    @_harmless
    def begin(self, seconds: float) -> None:
        """A choice has its first token."""
        self._first.observe(seconds)

    @_harmless
    def end(self, reason: str, seconds: float, per_token: float | None = None) -> None:
        """A choice has ended.

        Args:
            reason: its finish reason.
            seconds: since the request came.
            per_token: decode time per token; None where all came at once.
        """
        self._ends.labels(self._model, reason).inc()
        self._whole.observe(seconds)
        if per_token is not None:
            self._per_token.observe(per_token)

    @_harmless
    def answer(self, path: str, status: int) -> None:
        """An HTTP request was answered."""
        self._answers.labels(self._model, path, str(status)).inc()
