"""`outrider profile`: what a target pass costs here, and how far it is from the memory limit."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.console import print_rows, progress_bar, waiting
from outrider.cli.options import Device, Dtype, Implementation, Json, Model, Quantize, Threads, print_json

if TYPE_CHECKING:
    from outrider.engine.calibrate import PassCost

__all__ = ["command"]


def command(
    model: Model = "smollm2",
    widths: Annotated[str, typer.Option(help="Rows of a pass, separated by commas.")] = "1,2,4,8,16,32",
    contexts: Annotated[str, typer.Option(help="Tokens cached before the pass, separated by commas.")] = "256,1024",
    repeats: Annotated[int, typer.Option(min=1, help="Timed passes of each kind.")] = 11,
    parts: Annotated[bool, typer.Option("--parts", help="Tell where the time goes, part by part.")] = False,
    dtype: Dtype = "auto",
    quantize: Quantize = "none",
    device: Device = "auto",
    implementation: Implementation = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Measure the cost of a target pass by width and context, and compare it with the read bandwidth of memory.

    A flat row means that verifying draft tokens is nearly free on this machine; a steep one that only good drafts pay.
    """
    from outrider.cli.loading import Loading, load

    wanted = _numbers("widths", widths), _numbers("contexts", contexts)
    loaded = load(model, Loading(dtype, quantize, device, implementation, threads))
    from outrider.engine.calibrate import measure_passes, read_bandwidth

    total = len(wanted[0]) * len(wanted[1]) * repeats
    with progress_bar("measuring passes", total) as tick:
        costs = measure_passes(loaded.target, *wanted, repeats=repeats, with_parts=parts, tick=tick)
    with waiting("measuring memory"):
        bandwidth = read_bandwidth(loaded.target.device.type)
    report = _report(model, costs, loaded.target.weight_bytes, bandwidth)
    print_json(report) if as_json else _print(report)


def _numbers(name: str, text: str) -> list[int]:
    from outrider.errors import InvalidRequestError

    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise InvalidRequestError(f"--{name} is {text!r}; give whole numbers of 1 or more, separated by commas.")
    return list(dict.fromkeys(numbers))


def _report(model: str, costs: "list[PassCost]", weight_bytes: int, bandwidth: float) -> dict[str, Any]:
    """All figures, ready for JSON."""
    import torch

    limit = weight_bytes / bandwidth
    return {
        "model": model,
        "threads": torch.get_num_threads(),
        "weight_bytes": weight_bytes,
        "read_bandwidth_bytes_per_second": bandwidth,
        "limit_seconds": limit,
        "passes": [_row(cost, costs) | {"fraction_of_limit": limit / cost.seconds} for cost in costs],
    }


def _row(cost: "PassCost", costs: "list[PassCost]") -> dict[str, Any]:
    base = next(other for other in costs if other.context == cost.context)
    return {
        "context": cost.context,
        "width": cost.width,
        "seconds": cost.seconds,
        "best_seconds": cost.best_seconds,
        "ratio_to_first_width": cost.seconds / base.seconds,
        **({"part_seconds": dict(cost.parts)} if cost.parts else {}),
    }


def _print(report: dict[str, Any]) -> None:
    """The figures as a sentence and a table."""
    threads = f"{report['threads']} thread{'s' if report['threads'] > 1 else ''}"
    sys.stdout.write(
        f"{report['model']}: {report['weight_bytes'] / 1e6:,.1f} MB of weights are read in each pass; memory gives "
        f"{report['read_bandwidth_bytes_per_second'] / 1e9:.1f} GB/s with {threads}, so a pass takes at least "
        f"{1000 * report['limit_seconds']:.1f} ms.\n\n"
    )
    first = report["passes"][0]["width"]
    rows = [("context", "width", "median ms", "best ms", f"to width {first}", "share of the limit")]
    rows += [
        (
            f"{row['context']:,}",
            f"{row['width']}",
            f"{1000 * row['seconds']:.1f}",
            f"{1000 * row['best_seconds']:.1f}",
            f"{row['ratio_to_first_width']:.2f}",
            f"{row['fraction_of_limit']:.2f}",
        )
        for row in report["passes"]
    ]
    print_rows(rows, right=range(6))
    if "part_seconds" in report["passes"][0]:
        _print_parts(report["passes"])


def _print_parts(passes: list[dict[str, Any]]) -> None:
    """Milliseconds by part, a column for each kind of pass."""
    sys.stdout.write("\nMedian milliseconds by part; the rest is the embedding and what stands around the layers.\n\n")
    rows = [("part", *(f"{row['width']} behind {row['context']:,}" for row in passes))]
    rows += [
        (part, *(f"{1000 * row['part_seconds'][part]:.2f}" for row in passes)) for part in passes[0]["part_seconds"]
    ]
    rest = (1000 * (row["seconds"] - sum(row["part_seconds"].values())) for row in passes)
    print_rows([*rows, ("rest", *(f"{value:.2f}" for value in rest))], right=range(1, 1 + len(passes)))
