"""What a target pass costs on this machine, by width and context, and how far it is from the memory limit.

Times are medians over interleaved repeats: neighbours on the machine change them by 10 to 20 percent, so only figures
of one run are to be compared. This module knows passes; it does not know requests.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np

from outrider.cache.base import Cache
from outrider.errors import InvalidRequestError, UnsupportedError
from outrider.models.base import ForwardInputs, Segment, Target, TimesParts

__all__ = ["PassCost", "measure_passes", "read_bandwidth"]

_FILL_ROWS = 512


@dataclass(frozen=True, slots=True)
class PassCost:
    """Cost of one kind of pass.

    Attributes:
        width: rows of the pass, all of one request.
        context: tokens cached before it.
        seconds: median time.
        best_seconds: shortest time.
        parts: part of the pass -> median time, where it was asked for; the rest is what none of them counts.
    """

    width: int
    context: int
    seconds: float
    best_seconds: float
    parts: Mapping[str, float] = field(default_factory=dict)


def read_bandwidth(device: str = "cpu", num_bytes: int = 1 << 30, repeats: int = 5) -> float:
    """Bytes a second that a device reads from its memory: the sum of a float32 array, best of `repeats`.

    Args:
        device: where the array lies.
        num_bytes: size of the array.
        repeats: number of timed sums.
    """
    import torch

    values = torch.ones(num_bytes // 4, device=device)
    values.sum().item()
    return num_bytes / min(_timed(lambda: values.sum().item()) for _ in range(repeats))


def measure_passes(
    target: Target,
    widths: Sequence[int],
    contexts: Sequence[int],
    *,
    repeats: int = 11,
    with_parts: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> list[PassCost]:
    """Time chain passes of several widths behind several contexts.

    Args:
        target: the model.
        widths: rows of a pass.
        contexts: tokens cached before the pass.
        repeats: timed passes of each kind; the kinds take turns.
        with_parts: whether the time of a pass's parts is told, too.
        tick: called after each timed pass.

    Raises:
        InvalidRequestError: a width or context is below 1, or both together exceed the model's context.
        UnsupportedError: the time of parts is asked of a target that does not tell it.
    """
    watch: Callable[[], AbstractContextManager[Mapping[str, float]]] = _no_parts
    if with_parts:
        if not isinstance(target, TimesParts):
            raise UnsupportedError("the time of parts is asked for, but this target does not tell it; leave it out.")
        watch = target.time_parts
    longest = max(contexts, default=0) + max(widths, default=0)
    if min(*widths, *contexts) < 1 or longest > target.context_length:
        raise InvalidRequestError(
            f"widths are {list(widths)} and contexts {list(contexts)}; give numbers of 1 or more that together stay "
            f"within the context of {target.context_length}."
        )
    costs = []
    for context in contexts:
        cache = target.make_cache()
        slot = _filled(target, cache, context, max(widths))
        times: dict[int, list[float]] = {width: [] for width in widths}
        parts: dict[int, list[Mapping[str, float]]] = {width: [] for width in widths}
        for repeat in range(repeats + 1):
            for width in widths:
                with watch() as own:
                    seconds = _pass_seconds(target, cache, slot, context, width)
                if repeat:  # the first round warms up
                    times[width].append(seconds)
                    parts[width].append(own)
                    tick()
        costs += [
            PassCost(width, context, statistics.median(times[width]), min(times[width]), _medians(parts[width]))
            for width in widths
        ]
        cache.release(slot)
    return costs


def _no_parts() -> AbstractContextManager[Mapping[str, float]]:
    return nullcontext({})


def _medians(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(own[name] for own in parts) for name in parts[0]}


def _filled(target: Target, cache: Cache, context: int, width: int) -> int:
    slot = cache.acquire()
    cache.reserve(slot, context + width)
    for start in range(0, context, _FILL_ROWS):
        target.forward(_chain(target, slot, start, min(_FILL_ROWS, context - start)), cache)
        cache.keep(slot, min(start + _FILL_ROWS, context), ())
    return slot


def _pass_seconds(target: Target, cache: Cache, slot: int, context: int, width: int) -> float:
    inputs = _chain(target, slot, context, width)
    seconds = _timed(lambda: target.forward(inputs, cache))
    cache.truncate(slot, context)
    return seconds


def _chain(target: Target, slot: int, start: int, num_rows: int) -> ForwardInputs:
    positions = np.arange(start, start + num_rows)
    tokens = (positions * 7919 + 11) % min(target.vocab_size, 4096)
    return ForwardInputs(tokens, positions, [Segment(slot, 0, num_rows, start)], np.arange(num_rows))


def _timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started
