"""What `outrider plan` does once its options are read: gather, advise, tell.

This module turns advice into lines; the advice is `analysis.advice`. Invariant: where nothing pays, that is what the
first line says.
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from outrider.analysis.advice import Advice, Candidate, advise, covered_speedup, covered_tokens
from outrider.analysis.cost import CostCurve
from outrider.analysis.flags import server_flags
from outrider.cli.console import note, print_rows
from outrider.errors import InvalidRequestError

__all__ = ["Inputs", "Report", "advise_on", "print_advice", "write_curve"]


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is known.

    Attributes:
        candidates: the drafters.
        cost: what a pass costs, where a run measured it.
        context: tokens before those passes.
        speedups: what a run measured, by candidate.
    """

    candidates: tuple[Candidate, ...]
    cost: CostCurve | None = None
    context: int = 0
    speedups: Mapping[str, float | None] = field(default_factory=dict)

    @classmethod
    def from_run(cls, path: Path, acceptance: str | None) -> "Inputs":
        """Read a recorded run.

        Raises:
            InvalidRequestError: it is none, or an acceptance is given as well.
        """
        from outrider.bench.journal import read_document
        from outrider.bench.measured import read_measured

        if acceptance is not None:
            raise InvalidRequestError("--acceptance and a run are given; the run tells acceptance, leave one out.")
        document, _ = read_document(path)
        measured = read_measured(document)
        for name in measured.left_out:
            note(f"note: the run does not tell enough about {name}; it is left out.")
        return cls(measured.candidates, measured.cost, measured.context, measured.speedups)


@dataclass(frozen=True, slots=True)
class Report:
    """The answer with what it stands on.

    Attributes:
        advice: what to do.
        inputs: what is known.
        curve: what a pass costs; None for the same at every width.
        context: tokens before the pass.
        batch: requests that share a pass.
        longest: draft tokens a pass at most.
        flags: server -> its flags for the advice.
    """

    advice: Advice
    inputs: Inputs
    curve: CostCurve | None
    context: int
    batch: int
    longest: int
    flags: Mapping[str, str]

    def price(self, rows: int) -> float:
        """What a pass of so many rows costs."""
        return 1.0 if self.curve is None else self.curve.seconds(rows, self.context)

    def as_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {
            "speculate": self.advice.choice is not None,
            **asdict(self.advice),
            "candidates": [asdict(candidate) for candidate in self.inputs.candidates],
            "measured_speedups": dict(self.inputs.speedups),
            "batch": self.batch,
            "context": self.context,
            "cost_is_flat": self.curve is None,
            "flags": dict(self.flags),
        }


def advise_on(inputs: Inputs, *, cost: str | None, context: int | None, batch: int, longest: int) -> Report:
    """Advise.

    Args:
        inputs: what is known.
        cost: what a pass costs, as written; None for what a run measured, or flat.
        context: tokens before the pass; None for those of the run.
        batch: requests that share a pass.
        longest: draft tokens a pass at most.
    """
    from outrider.replay.costs import read_cost

    curve = inputs.cost if cost is None else read_cost(cost)
    before = inputs.context if context is None else context
    price = (lambda rows: 1.0) if curve is None else (lambda rows: curve.seconds(rows, before))  # noqa: ARG005
    advice = advise(inputs.candidates, price, batch, longest)
    return Report(advice, inputs, curve, before, batch, longest, _flags(advice))


def _flags(advice: Advice) -> dict[str, str]:
    from outrider.drafters.registry import check_drafter

    if advice.choice is None:
        return server_flags("none", {}, 0)
    entry, options = check_drafter(_drafter(advice.choice.name))
    return server_flags(entry.name, options, advice.choice.length)


def _drafter(name: str) -> str:
    """The drafter of a candidate, whose name may tell the length and temperature that it was measured at."""
    return name.split(", T=")[0].split(" length ")[0]


def print_advice(report: Report) -> None:
    """The answer as sentences and tables."""
    advice = report.advice
    sys.stdout.write(_sentence(report) + "\n\n")
    measured = report.inputs.speedups
    rows = [("drafter", "best length", "tokens a pass", "speed-up") + ("measured",) * bool(measured)]
    for option in advice.options:
        cells = [option.name, str(option.length), f"{option.tokens:.2f}", f"{option.speedup:.2f}"]
        known = measured.get(option.name)
        rows.append((*cells, *([f"{known:.2f}" if known else "-"] if measured else [])))
    print_rows(rows, right=range(1, 5))
    if advice.elsewhere:
        sys.stdout.write("\nif every acceptance were another:\n\n")
        lines = [("acceptance", "speed-up then", "best length then", "speed-up there")]
        lines += [
            (f"{row.shift:+.2f}", f"{row.speedup:.2f}", str(row.best_length), f"{row.best_speedup:.2f}")
            for row in advice.elsewhere
        ]
        print_rows(lines, right=range(4))
    sys.stdout.write("\nthe same elsewhere:\n\n")
    print_rows([(server, flags) for server, flags in report.flags.items()])


def _sentence(report: Report) -> str:
    choice = report.advice.choice
    load = "" if report.batch == 1 else f" with {report.batch} requests in a pass"
    if choice is None:
        return f"do not speculate{load}: no drafter and no length is faster than plain decoding."
    given = f"--drafter {_drafter(choice.name)} --policy fixed:length={choice.length}"
    flat = " (every width of a pass is taken to cost the same; give --cost)" if report.curve is None else ""
    return f"speculate{load} with {given}: {choice.speedup:.2f} times as fast, {choice.tokens:.2f} tokens a pass{flat}."


def write_curve(path: Path, report: Report) -> None:
    """Speed-up by length for each drafter, as a plot."""
    from outrider.cli.plotting import write_plots

    plots = []
    for candidate, option in zip(report.inputs.candidates, report.advice.options, strict=True):
        rows = [
            {
                "length": length,
                "speedup": covered_speedup(candidate, length, report.price, report.batch),
                "tokens": covered_tokens(candidate, length),
                "mark": "best" if length == option.length else "",
            }
            for length in range(report.longest + 1)
        ]
        plots.append(("lengths", rows, candidate.name))
    write_plots(path, plots)
