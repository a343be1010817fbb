"""Sums over runs as the figures that people read.

Metric names and formulas are those of `docs/notation.md` and `docs/bench.md`. This module knows stored runs only.
Invariants: every rate is a ratio of sums over prompts, never a mean of ratios; what was not measured is None, not 0.
"""

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from outrider.bench.arms import OFF
from outrider.bench.intervals import speedup_interval
from outrider.bench.rounds import Round, select
from outrider.bench.runs import Run, seconds_per_token
from outrider.engine.stats import SpecStats

__all__ = ["ALL", "summarise"]

ALL = "all"
"""The task name of the row over all prompts."""


def summarise(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """One row for each temperature, kind of run and task, and one over all tasks where there are several.

    Args:
        rounds: all rounds of a benchmark; those with equal kinds of runs.
    """
    rows = []
    for temperature in dict.fromkeys(r.temperature for r in rounds):
        chosen = select(rounds, temperature)
        tasks = list(dict.fromkeys(r.task for r in chosen))
        for kind in (k for k in chosen[0].runs if k != OFF):
            named = [(ALL, chosen)] if len(tasks) != 1 else []
            named += [(task, select(chosen, temperature, task)) for task in tasks]
            rows += [_row(group, kind, task, temperature) for task, group in named]
    return rows


def _row(rounds: Sequence[Round], kind: str, task: str, temperature: float) -> dict[str, Any]:
    off, on = [r.runs[OFF] for r in rounds], [r.runs[kind] for r in rounds]
    return {
        "kind": kind,
        "task": task,
        "temperature": temperature,
        "num_prompts": len(rounds),
        **_speed(off, on),
        **_times("off", off),
        **_times("on", on),
        **_speculation(on),
        "drafted_off": _drafted(off),
        **_loops(off, on),
        **_equality(rounds, kind),
        "peak_bytes_off": _peak(off),
        "peak_bytes_on": _peak(on),
    }


def _speed(off: Sequence[Run], on: Sequence[Run]) -> dict[str, Any]:
    """Speed-up of decoding with its interval, and of whole requests."""
    interval = speedup_interval(
        [(run.decode_seconds, run.num_decoded) for run in off], [(run.decode_seconds, run.num_decoded) for run in on]
    )
    return {
        "speedup": _speedup(off, on),
        "speedup_low": None if interval is None else interval[0],
        "speedup_high": None if interval is None else interval[1],
        "request_speedup": _ratio(_whole(off), _whole(on)),
    }


def _speedup(off: Sequence[Run], on: Sequence[Run]) -> float | None:
    return _ratio(seconds_per_token(off), seconds_per_token(on))


def _whole(runs: Sequence[Run]) -> float | None:
    """Seconds a token with the prompt's own time in it."""
    return _ratio(sum(run.total_seconds for run in runs), sum(run.num_tokens for run in runs))


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _times(side: str, runs: Sequence[Run]) -> dict[str, Any]:
    """Speeds and waiting times of one side."""
    per_token = seconds_per_token(runs)
    gaps = np.asarray([gap for run in runs for gap in run.gaps])
    levels = np.quantile(gaps, [0.5, 0.95, 1.0]).tolist() if len(gaps) else [None] * 3
    spent = [sum(run.draft_seconds for run in runs), sum(run.verify_seconds for run in runs)]
    is_known = all(run.stats is not None for run in runs)
    other = sum(run.decode_seconds for run in runs) - sum(spent)
    values = {
        "num_tokens": sum(run.num_tokens for run in runs),
        "tokens_per_second": _ratio(1.0, per_token),
        "first_token_seconds": statistics.median(run.first_token_seconds for run in runs),
        "seconds_per_token": per_token,
        "chunk_gap_seconds": dict(zip(("median", "p95", "max"), levels, strict=True)),
        "decode_seconds": sum(run.decode_seconds for run in runs),
        "draft_seconds": spent[0] if is_known else None,
        "verify_seconds": spent[1] if is_known else None,
        "other_seconds": other if is_known else None,
    }
    return {f"{name}_{side}": value for name, value in values.items()}


def _speculation(runs: Sequence[Run]) -> dict[str, Any]:
    """What became of the drafts."""
    known = [run.stats for run in runs if run.stats is not None]
    if len(known) < len(runs):
        return _from_counters(runs)
    stats = sum(known, SpecStats())
    depths = range(max(stats.attempts_at, default=-1) + 1)
    wasted = stats.drafted - stats.accepted
    return {
        "block_efficiency": stats.block_efficiency,
        "acceptance_rate": stats.acceptance_rate if stats.drafted else None,
        "acceptance_rate_at": [stats.acceptance_rate_at(depth) for depth in depths],
        "accepted_share_at": [stats.accepts_at[depth] / stats.drafted_steps for depth in depths],
        "accepted_fraction": stats.accepted_fraction if stats.drafted else None,
        "mean_accepted_length": stats.mean_accepted_length if stats.drafted else None,
        "zero_accept_fraction": stats.zero_accept_fraction if stats.drafted else None,
        "coverage": stats.coverage,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "wasted_rows": wasted,
        "wasted_row_fraction": wasted / (stats.drafted + stats.steps) if stats.steps else None,
    }


def _from_counters(runs: Sequence[Run]) -> dict[str, Any]:
    """The part of it that a server's counters tell."""
    changes = [run.counters for run in runs if run.counters is not None]
    if not changes or len(changes) < len(runs):
        return {}
    names = {name for change in changes for name in change}

    def total(name: str) -> float | None:
        return sum(change.get(name, 0.0) for change in changes) if name in names else None

    def at(depth: int) -> float:
        return total(f"at {depth}") or 0.0

    drafts, drafted, accepted = total("drafts"), total("drafted") or 0.0, total("accepted") or 0.0
    rejections, passes = total("rejections"), total("passes")
    accept_depths = sorted(int(name[3:]) for name in names if name.startswith("at "))
    tried_depths = sorted(int(name[9:]) for name in names if name.startswith("tried at "))
    emitted = sum(run.num_tokens for run in runs)
    return {
        "block_efficiency": _ratio(emitted, emitted - accepted if passes is None else passes),
        "acceptance_rate": None if rejections is None else _ratio(accepted, accepted + rejections),
        "acceptance_rate_at": [_ratio(at(depth), total(f"tried at {depth}")) or 0.0 for depth in tried_depths],
        "accepted_share_at": [at(depth) / drafts for depth in accept_depths] if drafts else [],
        "accepted_fraction": _ratio(accepted, drafted),
        "mean_accepted_length": _ratio(accepted, drafts),
        "zero_accept_fraction": _ratio(total("zero accepts"), drafts),
        "coverage": _ratio(drafts, passes),
        "drafted": drafted,
        "accepted": accepted,
        "wasted_rows": drafted - accepted,
        "wasted_row_fraction": None if passes is None else _ratio(drafted - accepted, drafted + passes),
    }


def _drafted(runs: Sequence[Run]) -> float | None:
    """Tokens that were drafted in runs that should be plain; anything but 0 is a fault of the set-up."""
    if all(run.stats is not None for run in runs):
        return sum(run.stats.drafted for run in runs if run.stats is not None)
    known = [run.counters.get("drafted", 0.0) for run in runs if run.counters is not None]
    return sum(known) if len(known) == len(runs) else None


def _loops(off: Sequence[Run], on: Sequence[Run]) -> dict[str, Any]:
    """How much of the gain is the text repeating itself."""
    inside = [run.num_in_loops for run in on if run.num_in_loops is not None]
    if len(inside) < len(on):
        return {"loop_share": None, "output_in_loops": None, "speedup_without_loops": None, "num_without_loops": None}
    free = [number for number, run in enumerate(off) if not run.num_in_loops and not inside[number]]
    accepted = sum(run.stats.accepted for run in on if run.stats is not None)
    return {
        "loop_share": _ratio(sum(run.num_accepted_in_loops or 0 for run in on), accepted),
        "output_in_loops": _ratio(sum(inside), sum(run.num_tokens for run in on)),
        "speedup_without_loops": _speedup([off[n] for n in free], [on[n] for n in free]),
        "num_without_loops": len(free),
    }


def _equality(rounds: Sequence[Round], kind: str) -> dict[str, Any]:
    """How many texts are equal; of the others the earliest place and the largest margin."""
    parted = [r.divergences[kind] for r in rounds if kind in r.divergences]
    margins = [where.margin for where in parted if where.margin is not None]
    return {
        "num_equal": len(rounds) - len(parted),
        "first_difference": min((where.place for where in parted), default=None),
        "largest_margin": max(margins, default=None),
    }


def _peak(runs: Sequence[Run]) -> int | None:
    return max((run.peak_bytes for run in runs if run.peak_bytes is not None), default=None)
