"""`outrider replay`: drafters and policies compared on recorded texts, without a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from outrider.cli import recording
from outrider.cli.console import note, print_rows, progress_bar
from outrider.cli.options import Json, print_json

if TYPE_CHECKING:
    from outrider.replay.records import TextRecord
    from outrider.replay.run import Result, Sums

__all__ = ["app"]

_SHOWN_POSITIONS = 8


class _RunByDefault(TyperGroup):
    """Takes `outrider replay FILE` for `outrider replay run FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `run` before anything that is no subcommand."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunByDefault,
    no_args_is_help=True,
    help="Compare drafters and policies on recorded texts, without a model: `outrider replay FILE` plays a file, "
    "`outrider replay record` makes one.",
)
app.command("record")(recording.command)


@app.command("run")
def run_command(
    files: Annotated[list[Path], typer.Argument(metavar="files", help="Files of records.", show_default=False)],
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            "-d",
            metavar="<text>",
            help="A drafter that needs no model, or several joined by +, as in ngram+suffix; may be repeated. "
            "Default: ngram.",
        ),
    ] = None,
    length: Annotated[
        str | None,
        typer.Option(
            help="Draft tokens a step, separated by commas; with --policy a limit. Default without --policy: 8."
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(metavar="<text>", help="As in generate; may be repeated. Default: fixed at each length."),
    ] = None,
    tree: Annotated[
        str | None, typer.Option(help="Let drafts branch: children of a node x draft tokens in all, as in 4x16.")
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option(
            help="What a pass costs, to predict the speed-up: a file of `outrider profile --json`, or width:ms pairs."
        ),
    ] = None,
    task: Annotated[str | None, typer.Option(help="Only texts of this task.")] = None,
    as_json: Json = False,
) -> None:
    """Play recorded texts with each drafter, policy and length, and count what each would have given (default)."""
    from outrider.replay.costs import read_cost
    from outrider.replay.records import read_texts
    from outrider.replay.run import replay
    from outrider.replay.setups import make_setups, read_tree

    lengths = _lengths(length) if length is not None else [] if policy else [8]
    setups = make_setups(drafter or ["ngram"], lengths, policy or (), None if tree is None else read_tree(tree))
    curve = None if cost is None else read_cost(cost)
    records, damage = read_texts(files)
    for sentence in damage:
        note(f"{sentence}.")
    records = _of_task(records, task)
    with progress_bar("replaying", len(setups) * len(records)) as tick:
        results = [replay(records, setup, cost=curve, tick=tick) for setup in setups]
    if as_json:
        print_json({"records": _about(files, records), "results": [result.as_dict() for result in results]})
    else:
        _print(results)


def _lengths(text: str) -> list[int]:
    from outrider.errors import InvalidRequestError

    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise InvalidRequestError(f"--length is {text!r}; give whole numbers of 1 or more, separated by commas.")
    return list(dict.fromkeys(map(int, parts)))


def _of_task(records: "list[TextRecord]", task: str | None) -> "list[TextRecord]":
    from outrider.errors import InvalidRequestError

    chosen = [record for record in records if task is None or record.task == task]
    if not chosen:
        tasks = ", ".join(dict.fromkeys(record.task for record in records))
        raise InvalidRequestError(f"--task is {task!r}, but the records have only {tasks}.")
    return chosen


def _about(files: Sequence[Path], records: "Sequence[TextRecord]") -> dict[str, Any]:
    return {
        "files": [str(file) for file in files],
        "models": sorted({record.source.model for record in records}),
        "vocab_size": records[0].source.vocab_size,
        "texts": len(records),
        "tokens": sum(len(record.output) for record in records),
    }


def _print(results: "Sequence[Result]") -> None:
    """One row for each setup and task, and one for all tasks of a setup."""
    is_priced = results[0].total.predicted_speedup is not None
    is_foretold = results[0].total.prediction_share is not None
    head = ["drafters", "policy", "task", "texts", "tokens a pass", "acceptance", "by position"]
    head += ["accepted a draft", "none accepted", "coverage", "wasted rows a pass", "us drafting a step"]
    rows = [head + ["share of prediction"] * is_foretold + ["predicted speed-up"] * is_priced]
    for result in results:
        named = [*result.tasks.items()] if len(result.tasks) > 1 else []
        for task, sums in [*named, ("all", result.total)]:
            rows.append([result.setup.drafters_text, result.setup.policy_text, task, *_cells(sums, is_foretold)])
        for name, count in result.failures.items():
            note(f"note: drafter {name} failed in {count} calls and proposed nothing there.")
    print_rows(rows, right=[3, 4, 5, *range(7, len(rows[0]))])


def _cells(sums: "Sums", is_foretold: bool) -> list[str]:
    stats, places = sums.stats, sums.acceptance_at
    shown = " ".join(f"{rate:.2f}" for rate in places[:_SHOWN_POSITIONS])
    cells = [
        f"{sums.texts}",
        f"{stats.block_efficiency:.3f}",
        f"{stats.acceptance_rate:.3f}",
        (shown + (" .." if len(places) > _SHOWN_POSITIONS else "")) or "-",
        f"{stats.mean_accepted_length:.2f}",
        f"{stats.zero_accept_fraction:.2f}",
        f"{stats.coverage:.2f}",
        f"{sums.wasted_rows:.2f}",
        f"{sums.draft_microseconds:.0f}",
    ]
    if is_foretold:
        cells.append("-" if sums.prediction_share is None else f"{sums.prediction_share:.3f}")
    return cells if sums.predicted_speedup is None else [*cells, f"{sums.predicted_speedup:.2f}"]
