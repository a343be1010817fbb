"""A benchmark as a table and a few sentences.

This module knows summaries and words; it prints nothing. Invariant: a figure that was not measured is a dash, never 0.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from outrider.bench.load import crossover, curve

__all__ = ["load_table", "sentences", "summary_tables"]

_SPEED = ("drafter", "task", "prompts", "speed-up", "95 %", "tok/s on", "off", "first token s", "equal")
_DRAFTS = (
    "drafter", "task", "tokens a pass", "acceptance", "accepted length", "none accepted", "coverage", "wasted rows",
    "in loops",
)  # fmt: skip
_TIMES = (
    "drafter", "task", "ms a token on", "off", "draft s", "passes s", "other s", "first token s off", "peak MB on",
    "off", "accepted at place 1, 2, ...",
)  # fmt: skip
_RATES = (
    "block_efficiency", "acceptance_rate", "mean_accepted_length", "zero_accept_fraction", "coverage",
    "wasted_row_fraction", "loop_share",
)  # fmt: skip


def summary_tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """How fast, what became of the drafts, where time and memory went: a line for each kind of run and task."""
    return [
        _table(_SPEED, rows, _speed_cells),
        _table(_DRAFTS, rows, _draft_cells),
        _table(_TIMES, rows, _time_cells),
    ]


def _table(
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    cells: Callable[[Mapping[str, Any]], list[str]],
) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < 2 else "right", no_wrap=number > 1)
    several = len({row["temperature"] for row in rows}) > 1
    sides = [(row["temperature"], row["kind"]) for row in rows]
    for number, row in enumerate(rows):
        if number and sides[number] != sides[number - 1] and len(set(sides)) < len(sides):
            table.add_section()
        name = f"{row['kind']}, T={row['temperature']:g}" if several else row["kind"]
        table.add_row(*map(Text, (name, row["task"], *cells(row))))  # texts, as names may look like markup
    return table


def load_table(loads: Sequence[Mapping[str, Any]]) -> Table:
    """Throughput by the number of requests at once."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    for name in ("drafter", "temperature", "at once", "tok/s on", "off", "ratio"):
        table.add_column(name, justify="left" if name == "drafter" else "right", no_wrap=True)
    for point in curve(loads):
        table.add_row(
            Text(point["kind"]),
            f"{point['temperature']:g}",
            str(point["concurrency"]),
            _number(point["tokens_per_second_on"], 1),
            _number(point["tokens_per_second_off"], 1),
            _number(point["throughput_ratio"], 2),
        )
    return table


def sentences(document: Mapping[str, Any]) -> list[str]:
    """What a reader should know beside the table."""
    said = [] if document["is_complete"] else ["the run is not finished: the same command goes on with it"]
    overall = _overall(document["summary"])
    for row in overall:
        said += _about(row, several=len(overall) > 1)
    said += [f"prompt {prompt} was left out: {reason}" for prompt, reason in document["skipped"].items()]
    points = curve(document["loads"])
    for kind, temperature in dict.fromkeys((point["kind"], point["temperature"]) for point in points):
        group = [p for p in points if (p["kind"], p["temperature"]) == (kind, temperature)]
        said.append(f"{kind} at temperature {temperature:g} {crossover(group)}")
    return said


def _overall(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The first row of each kind and temperature: the one over all tasks."""
    first: dict[tuple[str, float], Mapping[str, Any]] = {}
    for row in rows:
        first.setdefault((row["kind"], row["temperature"]), row)
    return list(first.values())


def _about(row: Mapping[str, Any], *, several: bool) -> list[str]:
    """Loops, parted texts and drafts in plain runs of one kind."""
    name = f"{row['kind']}, temperature {row['temperature']:g}: " if several else ""
    said = []
    if row.get("loop_share"):
        without = row["speedup_without_loops"]
        rest = f"{row['num_without_loops']} of {row['num_prompts']} prompts are free of loops"
        said.append(
            f"{name}{row['loop_share']:.0%} of the accepted tokens lie in loops of the text itself; {rest}"
            + (f", with a speed-up of {without:.2f}" if without is not None else "")
        )
    parted = row["num_prompts"] - row["num_equal"]
    if parted:
        margin = row["largest_margin"]
        said.append(
            f"{name}{parted} of {row['num_prompts']} texts differ from the plain ones, the earliest from place "
            f"{row['first_difference'] + 1} on"
            + ("" if margin is None else f"; the largest margin of the two best tokens there is {margin:.3g} nats")
        )
    if row.get("drafted_off"):
        said.append(f"{name}the server drafted {row['drafted_off']:.0f} tokens in runs that should be plain")
    return said


def _speed_cells(row: Mapping[str, Any]) -> list[str]:
    low, high = row["speedup_low"], row["speedup_high"]
    return [
        str(row["num_prompts"]),
        _number(row["speedup"], 2),
        "-" if low is None else f"{low:.2f} to {high:.2f}",
        _number(row["tokens_per_second_on"], 1),
        _number(row["tokens_per_second_off"], 1),
        _number(row["first_token_seconds_on"], 2),
        f"{row['num_equal']} of {row['num_prompts']}",
    ]


def _draft_cells(row: Mapping[str, Any]) -> list[str]:
    return [_number(row.get(name), 2) for name in _RATES]


def _time_cells(row: Mapping[str, Any]) -> list[str]:
    spent = [_number(row[f"{part}_seconds_on"], 2) for part in ("draft", "verify", "other")]
    return [
        *(_number(row[f"seconds_per_token_{side}"], 1, 1e3) for side in ("on", "off")),
        *spent,
        _number(row["first_token_seconds_off"], 2),
        *(_number(row[f"peak_bytes_{side}"], 0, 1e-6) for side in ("on", "off")),
        " ".join(_number(rate, 2) for rate in row.get("acceptance_rate_at") or ()) or "-",
    ]


def _number(value: float | None, digits: int, scale: float = 1.0) -> str:
    return "-" if value is None else f"{value * scale:.{digits}f}"
