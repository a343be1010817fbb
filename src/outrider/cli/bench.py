"""`outrider bench`: whether speculation pays on someone's own prompts."""

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.options import Device, Dtype, Implementation, Json, Quantize, Raw, Threads

__all__ = ["app"]

app = typer.Typer(help="Measure whether speculation pays on your prompts: the same prompts with and without, by turns.")

_RUNNING, _SERVER, _OUTPUT = "Running", "A server instead of a model", "Output"
_Html = Annotated[
    bool, typer.Option("--html", metavar="", help="Also write report.html, with plots.", rich_help_panel=_OUTPUT)
]


@app.callback(invoke_without_command=True)
def command(
    context: typer.Context,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            "--prompts",
            "-p",
            metavar="<path>",
            help="Prompts: plain lines, JSON lines with prompt or messages, Spec-Bench, MT-bench, HumanEval, EditEval, "
            "tool calls; may be repeated.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Prompts of a file at most.")] = None,
    per_task: Annotated[int | None, typer.Option(help="Prompts of a task at most.")] = None,
    task: Annotated[str | None, typer.Option(help="Only the prompts of this task.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="smollm2 (default), a model folder, a .gguf file, a hub name; a server's own name."
        ),
    ] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            "-d",
            metavar="<text>",
            help="As in generate; each is measured on its own, those joined by + together.",
        ),
    ] = None,
    length: Annotated[
        str | None, typer.Option(metavar="<numbers>", help="Draft tokens a step, as in 4,8; each is measured.")
    ] = None,
    tree: Annotated[
        str | None,
        typer.Option(
            metavar="<trees>",
            help="Draft trees, not chains: children of a node x nodes of a step, as in 4x8,3x16; each is measured.",
        ),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="As in generate. Default: heuristic, or fixed where --length is given.")
    ] = None,
    rule: Annotated[str | None, typer.Option(help="match (default), token, block or traversal.")] = None,
    use_prediction: Annotated[
        bool,
        typer.Option("--use-prediction", metavar="", help="Predict that the answer repeats the text to be changed."),
    ] = False,
    temperature: Annotated[
        str, typer.Option(metavar="<numbers>", help="As in 0,0.7; each is measured.", rich_help_panel=_RUNNING)
    ] = "0",
    max_tokens: Annotated[int, typer.Option(help="Output tokens at most.", rich_help_panel=_RUNNING)] = 128,
    seed: Annotated[
        int, typer.Option(help="Of the first prompt; the next has the next seed.", rich_help_panel=_RUNNING)
    ] = 0,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", metavar="", help="Go on past end-of-text tokens.", rich_help_panel=_RUNNING)
    ] = False,
    raw: Raw = False,
    concurrency: Annotated[
        str | None,
        typer.Option(metavar="<numbers>", help="Also many at once, as in 1,4,8.", rich_help_panel=_RUNNING),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="Measure this OpenAI-compatible server.", rich_help_panel=_SERVER)
    ] = None,
    endpoint_off: Annotated[
        str | None, typer.Option(help="The server without speculation.", rich_help_panel=_SERVER)
    ] = None,
    on_body: Annotated[
        str | None, typer.Option(metavar="<json>", help="Fields of a request with it.", rich_help_panel=_SERVER)
    ] = None,
    off_body: Annotated[
        str | None, typer.Option(metavar="<json>", help="Fields of a request without it.", rich_help_panel=_SERVER)
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder of the run; an unfinished one goes on.", rich_help_panel=_OUTPUT)
    ] = Path("bench-run"),
    html: _Html = False,
    as_json: Json = False,
    dtype: Dtype = "auto",
    quantize: Quantize = "none",
    device: Device = "auto",
    implementation: Implementation = "auto",
    threads: Threads = None,
) -> None:
    """Measure whether speculation pays on your prompts: the same prompts with and without, by turns.

    Leaves run.json with every pair of runs; the same command goes on where an interrupted one stopped.
    """
    from outrider.cli.bench_job import BenchJob, check_extras
    from outrider.cli.loading import Loading
    from outrider.cli.options import starting

    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    job = BenchJob(
        prompts=tuple(prompts or ()),
        limit=limit,
        per_task=per_task,
        task=task,
        model=model,
        drafters=tuple(drafter or ()),
        length=length,
        tree=tree,
        policy=policy,
        rule=rule,
        use_prediction=use_prediction,
        temperature=temperature,
        max_tokens=max_tokens,
        seed=seed,
        ignore_eos=ignore_eos,
        raw=raw,
        concurrency=concurrency,
        endpoint=endpoint,
        endpoint_off=endpoint_off,
        on_body=on_body,
        off_body=off_body,
        out=out,
        loading=Loading(dtype, quantize, device, implementation, threads),
    )
    job.check()
    check_extras(html=html, endpoint=endpoint is not None)
    with starting():
        from outrider.cli.benching import run

    run(job, html=html, as_json=as_json)


@app.command("report")
def report_command(
    path: Annotated[Path, typer.Argument(help="A run.json, or the folder of a run.", show_default=False)],
    html: _Html = False,
    as_json: Json = False,
) -> None:
    """Show a stored run again."""
    from outrider.cli.bench_job import check_extras
    from outrider.cli.options import starting

    check_extras(html=html, endpoint=False)
    with starting():
        from outrider.cli.benching import show_stored

    show_stored(path, html=html, as_json=as_json)


def _refuse_options(context: typer.Context) -> None:
    """Options of a measurement in front of a subcommand would be ignored."""
    from outrider.errors import InvalidRequestError

    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            word = f"--{name.removeprefix('as_').replace('_', '-')}"
            raise InvalidRequestError(
                f"{word} stands before {context.invoked_subcommand}, where it has no effect; put it behind or leave it "
                "out."
            )
