"""Contexts, shapes and a loop without a cache, for tests of drafters."""

from collections.abc import Sequence
from typing import Any

from outrider.core.coins import Stream
from outrider.core.params import Draw, SamplingParams
from outrider.core.process import History, Processor
from outrider.core.types import Kept, Plan
from outrider.drafters.base import DraftContext, Observation

NOTHING_SEEN = Observation()


def plan(name: str, budget: int, *, depth: int | None = None, width: int = 1, min_confidence: float = 0.0) -> Plan:
    return Plan(((name, budget),), budget if depth is None else depth, width, min_confidence)


def context(
    tokens: Sequence[int],
    wanted: Plan,
    *,
    request_id: str = "r",
    num_prompt: int | None = None,
    vocab_size: int = 16,
    draw: Draw = Draw.SHARED_NOISE,
    params: SamplingParams | None = None,
    stops: frozenset[int] = frozenset(),
    seed: int = 7,
    round_number: int = 0,
    **more: Any,
) -> DraftContext:
    count = len(tokens) if num_prompt is None else num_prompt
    processor = Processor(params or SamplingParams(), vocab_size, stops)
    history = History(tokens[:count])
    history.extend(tokens[count:])
    return DraftContext(
        request_id=request_id,
        tokens=tokens,
        num_prompt=count,
        plan=wanted,
        draw=draw,
        processor=processor,
        state=processor.start(history),
        coins=Stream(seed, round_number),
        stop_token_ids=stops,
        **more,
    )


def kept(tokens: Sequence[int], num_accepted: int | None = None) -> Kept:
    count = max(0, len(tokens) - 1) if num_accepted is None else num_accepted
    return Kept(tokens=tuple(tokens), nodes=tuple(range(max(0, len(tokens) - 1))), num_accepted=count)
