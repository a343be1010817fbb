"""Runs with known figures."""

from collections import Counter
from typing import Any

from outrider.bench.arms import OFF
from outrider.bench.rounds import Divergence, Round
from outrider.bench.runs import Run
from outrider.engine.stats import SpecStats


def stats(**sums: Any) -> SpecStats:
    return SpecStats(**{name: Counter(value) if isinstance(value, dict) else value for name, value in sums.items()})


def make_run(seconds: float, tokens: int = 11, *, first: float = 0.5, num_first: int = 1, **more: Any) -> Run:
    return Run(
        output=more.pop("output", tuple(range(tokens))),
        num_tokens=tokens,
        num_first=num_first,
        first_token_seconds=first,
        decode_seconds=seconds,
        gaps=more.pop("gaps", (seconds,)),
        finish_reason="length",
        stats=more.pop("stats", stats(steps=tokens, emitted=tokens)),
        num_in_loops=more.pop("num_in_loops", 0),
        num_accepted_in_loops=more.pop("num_accepted_in_loops", 0),
        **more,
    )


def make_round(prompt: str, off: Run, on: Run, *, task: str = "text", place: int | None = None, **more: Any) -> Round:
    parted = {} if place is None else {"ngram": Divergence(place, more.pop("margin", None))}
    return Round(
        prompt=prompt,
        task=task,
        temperature=more.pop("temperature", 0.0),
        seed=0,
        num_prompt=7,
        order=(OFF, "ngram"),
        runs={OFF: off, "ngram": on},
        divergences=parted,
    )
