"""`outrider profile`: what a target pass costs here, and how far it is from the memory limit."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.console import progress_bar

if TYPE_CHECKING:
    from outrider.engine.calibrate import PassCost

__all__ = ["command"]


def command(
    model: Annotated[str, typer.Option(help="smollm2, a model folder, a .gguf file or a hub name.")] = "smollm2",
    widths: Annotated[str, typer.Option(help="Rows of a pass, separated by commas.")] = "1,2,4,8,16,32",
    contexts: Annotated[str, typer.Option(help="Tokens cached before the pass, separated by commas.")] = "256,1024",
    repeats: Annotated[int, typer.Option(min=1, help="Timed passes of each kind.")] = 11,
    threads: Annotated[int | None, typer.Option(min=1, help="Processor threads; default as PyTorch chooses.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
) -> None:
    """Measure the cost of a target pass by width and context, and compare it with the read bandwidth of memory.

    A flat row means that verifying draft tokens is nearly free on this machine; a steep one that only good drafts pay.
    """
    wanted = _numbers("widths", widths), _numbers("contexts", contexts)
    import torch

    from outrider.engine.calibrate import measure_passes, read_bandwidth
    from outrider.models.loading import load_model

    if threads is not None:
        torch.set_num_threads(threads)
    loaded = load_model(model, dtype=dtype, device=device)
    total = len(wanted[0]) * len(wanted[1]) * repeats
    with progress_bar("measuring passes", total) as tick:
        costs = measure_passes(loaded.target, *wanted, repeats=repeats, tick=tick)
    report: dict[str, Any] = {
        "model": model,
        "threads": torch.get_num_threads(),
        "weight_bytes": loaded.target.weight_bytes,
        "read_bandwidth_bytes_per_second": read_bandwidth(),
        "passes": [_row(cost, costs) for cost in costs],
    }
    limit = report["weight_bytes"] / report["read_bandwidth_bytes_per_second"]
    for row in report["passes"]:
        row["fraction_of_limit"] = limit / row["seconds"]
    typer.echo(json.dumps(report, indent=2)) if as_json else _print(report)


def _numbers(name: str, text: str) -> list[int]:
    from outrider.errors import InvalidRequestError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InvalidRequestError(f"{name} is {text!r}; give whole numbers separated by commas.") from error


def _row(cost: "PassCost", costs: "list[PassCost]") -> dict[str, Any]:
    base = next(other for other in costs if other.context == cost.context)
    return {
        "context": cost.context,
        "width": cost.width,
        "seconds": cost.seconds,
        "best_seconds": cost.best_seconds,
        "ratio_to_first_width": cost.seconds / base.seconds,
    }


def _print(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("context", "width", "ms", "best ms", "ratio", "of limit", box=None, pad_edge=False)
    for row in report["passes"]:
        table.add_row(
            str(row["context"]),
            str(row["width"]),
            f"{1000 * row['seconds']:.1f}",
            f"{1000 * row['best_seconds']:.1f}",
            f"{row['ratio_to_first_width']:.2f}",
            f"{row['fraction_of_limit']:.2f}",
        )
    console = Console(highlight=False)
    console.print(
        f"{report['model']}: {report['weight_bytes'] / 1e6:,.1f} MB read in each pass; memory gives "
        f"{report['read_bandwidth_bytes_per_second'] / 1e9:.1f} GB/s with {report['threads']} threads, so a pass takes "
        f"at least {1000 * report['weight_bytes'] / report['read_bandwidth_bytes_per_second']:.1f} ms"
    )
    console.print(table)
