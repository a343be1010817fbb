"""Live runs of toy models, and their texts as records."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from outrider.core.params import SamplingParams, Speculation
from outrider.drafters.base import Drafter
from outrider.engine.config import EngineConfig
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.stats import SpecStats
from outrider.models.base import Target
from outrider.models.toy import TableTarget, random_decoder
from outrider.policies.base import Policy
from outrider.replay.record import source_of
from outrider.replay.records import TextRecord

VOCAB = 12


def target(kind: str) -> Target:
    """A toy whose texts repeat themselves now and then."""
    if kind == "table":
        return TableTarget(VOCAB, order=2, seed=4, context_length=256)
    return random_decoder(2, vocab_size=VOCAB, context_length=256, layers=2, hidden=16, heads=2)


def prompts(count: int, seed: int = 1) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 8, generator.integers(3, 40)).tolist() for _ in range(count)]


def live(
    model: Target,
    texts: Sequence[Sequence[int]],
    params: SamplingParams,
    drafters: Sequence[Drafter] = (),
    policy: Policy | None = None,
    *,
    ends: Sequence[int] = (),
    speculation: Speculation | None = None,
    **limits: Any,
) -> tuple[Engine, list[Request]]:
    """Run requests one after the other on an engine with a model."""
    engine = Engine(
        model, drafters, policy, end_ids=ends, config=EngineConfig(**({"max_running": 1, "prefix_tokens": 0} | limits))
    )
    requests = []
    for text in texts:
        requests += engine.submit(text, params, speculation)
        while engine.num_unfinished:
            engine.step()
    return engine, requests


def as_records(engine: Engine, requests: Sequence[Request], **more: Any) -> list[TextRecord]:
    source = source_of("toy", engine, requests[0].params)
    return [
        TextRecord(
            id=str(number),
            task="odd" if number % 2 else "even",
            prompt=tuple(request.tokens[: request.num_prompt]),
            output=tuple(request.output),
            max_tokens=request.max_length - request.num_prompt,
            finish_reason=str(request.finish_reason),
            source=source,
            seed=request.seed,
            **more,
        )
        for number, request in enumerate(requests)
    ]


def counts(stats: SpecStats) -> dict[str, Any]:
    """All counters, times left out."""
    return {f.name: getattr(stats, f.name) for f in fields(stats) if not f.name.endswith("_seconds")}
