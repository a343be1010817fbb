"""`outrider plan`: whether to speculate, with which drafter and length, and how wrong that would be elsewhere."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.options import Json, print_json

if TYPE_CHECKING:
    from outrider.analysis.advice import Candidate

__all__ = ["command"]


def command(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="run", help="A run.json of `outrider bench`, or its folder.", show_default=False),
    ] = None,
    acceptance: Annotated[
        str | None,
        typer.Option(help="Without a run: the acceptance rate, or one for each place of a draft: 0.8,0.7,0.65."),
    ] = None,
    draft_cost: Annotated[
        float, typer.Option(help="Without a run: cost of one draft token, in passes of the target.")
    ] = 0.0,
    coverage: Annotated[
        float, typer.Option(help="Without a run: share of the passes in which the drafter drafts anything.")
    ] = 1.0,
    drafter: Annotated[
        str, typer.Option("--drafter", "-d", help="Without a run: the drafter, for the flags.")
    ] = "ngram",
    cost: Annotated[
        str | None,
        typer.Option(
            help="What a pass costs: a file of `outrider profile --json`, or width:ms pairs. Default: the run's own, "
            "else the same at every width."
        ),
    ] = None,
    context: Annotated[int | None, typer.Option(min=0, metavar="<int>", help="Tokens before the pass.")] = None,
    batch: Annotated[int, typer.Option(min=1, metavar="<int>", help="Requests that share a pass.")] = 1,
    longest: Annotated[int, typer.Option(min=1, max=64, metavar="<int>", help="Draft tokens a pass at most.")] = 16,
    plot: Annotated[
        Path | None, typer.Option(metavar="<file>", help="Also write a plot: .html, .svg or .png.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Say which drafter and draft length pay, from a recorded benchmark or from numbers, or that none does.

    Also shown: what the advice is worth if acceptance is another, and the flags for vLLM, SGLang and TGI.
    """
    from outrider.cli.planning import Inputs, advise_on, print_advice, write_curve

    inputs = (
        Inputs.from_run(run, acceptance)
        if run is not None
        else Inputs(_given(acceptance, draft_cost, coverage, drafter))
    )
    report = advise_on(inputs, cost=cost, context=context, batch=batch, longest=longest)
    if plot is not None:
        write_curve(plot, report)
    print_json(report.as_dict()) if as_json else print_advice(report)


def _given(acceptance: str | None, draft_cost: float, coverage: float, drafter: str) -> "tuple[Candidate, ...]":
    from outrider.analysis.advice import Candidate
    from outrider.drafters.registry import check_drafter
    from outrider.errors import InvalidRequestError

    if acceptance is None:
        raise InvalidRequestError("nothing was measured; give a run.json of `outrider bench`, or --acceptance.")
    check_drafter(drafter)
    try:
        rates = tuple(float(part) for part in acceptance.split(","))
    except ValueError as error:
        raise InvalidRequestError(
            f"--acceptance is {acceptance!r}; give numbers from 0 to 1, separated by commas."
        ) from error
    return (Candidate(drafter, rates, draft_cost, coverage),)
