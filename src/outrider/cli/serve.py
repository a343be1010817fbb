"""`outrider serve`: an OpenAI-compatible server around a model."""

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.options import Device, Dtype, Implementation, Memory, Model, Quantize, Threads, starting

__all__ = ["command"]

_DRAFTING, _DOOR, _LIMITS = "Speculation (where a request does not say)", "Door", "Limits"


def command(
    model: Model = "smollm2",
    name: Annotated[str | None, typer.Option(help="What clients call the model; default: as --model.")] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            "-d",
            metavar="<text>",
            help="As in generate; may be repeated. Default: prediction and ngram.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    policy: Annotated[str, typer.Option(help="As in generate.", rich_help_panel=_DRAFTING)] = "heuristic",
    shadow: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            metavar="<number>",
            help="Share of the texts that an idle server runs again without speculation and compares.",
            rich_help_panel=_DRAFTING,
        ),
    ] = 0.0,
    shadow_waiting: Annotated[
        int,
        typer.Option(min=1, metavar="<int>", help="Texts that may wait for that.", rich_help_panel=_DRAFTING),
    ] = 32,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 is all of them.", rich_help_panel=_DOOR)
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="<int>", help="Port; 0 takes a free one.", rich_help_panel=_DOOR)
    ] = 8000,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="<file>",
            help="API keys, one a line; OUTRIDER_API_KEYS adds some, separated by commas. None: everybody may ask.",
            rich_help_panel=_DOOR,
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="<origin>", help="Pages of this origin may ask; may be repeated.", rich_help_panel=_DOOR),
    ] = None,
    max_running: Annotated[
        int, typer.Option(min=1, metavar="<int>", help="Texts that share a pass.", rich_help_panel=_LIMITS)
    ] = 16,
    max_waiting: Annotated[
        int,
        typer.Option(min=1, metavar="<int>", help="Texts that wait or run; beyond it: 429.", rich_help_panel=_LIMITS),
    ] = 256,
    max_choices: Annotated[
        int, typer.Option(min=1, metavar="<int>", help="Texts of one request.", rich_help_panel=_LIMITS)
    ] = 64,
    max_output_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="<int>", help="Tokens of one text.", rich_help_panel=_LIMITS)
    ] = None,
    cache_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="<int>", help="Tokens in the target's cache.", rich_help_panel=_LIMITS),
    ] = None,
    chunk_tokens: Annotated[
        int, typer.Option(min=1, metavar="<int>", help="Prompt tokens of a pass.", rich_help_panel=_LIMITS)
    ] = 512,
    prefix_tokens: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="<int>",
            help="Of these, tokens of finished texts that are kept for texts that begin alike; 0 keeps none.",
            rich_help_panel=_LIMITS,
        ),
    ] = 16_384,
    memory: Memory = None,
    max_nodes: Annotated[
        int, typer.Option(min=1, metavar="<int>", help="Draft tokens of a text in a pass.", rich_help_panel=_LIMITS)
    ] = 64,
    max_body_bytes: Annotated[
        int, typer.Option(min=1024, metavar="<int>", help="Bytes of a request.", rich_help_panel=_LIMITS)
    ] = 2**20,
    body_seconds: Annotated[
        float, typer.Option(min=0.1, metavar="<number>", help="Seconds for a request to come.", rich_help_panel=_LIMITS)
    ] = 30.0,
    request_seconds: Annotated[
        float, typer.Option(min=0.1, metavar="<number>", help="Seconds for its answer.", rich_help_panel=_LIMITS)
    ] = 3600.0,
    grace_seconds: Annotated[
        float,
        typer.Option(
            min=0, metavar="<number>", help="Seconds for answers to end after SIGTERM.", rich_help_panel=_LIMITS
        ),
    ] = 30.0,
    dtype: Dtype = "auto",
    quantize: Quantize = "none",
    device: Device = "auto",
    implementation: Implementation = "auto",
    threads: Threads = None,
) -> None:
    """Serve a model over HTTP as OpenAI does, with speculation: chats, completions, streams, metrics.

    One line of JSON for each request goes to standard error, without what was written. docs/server.md tells the rest.
    """
    from outrider.cli.loading import Loading
    from outrider.cli.serve_job import ServeJob

    job = ServeJob(
        model=model,
        name=name or model,
        drafters=tuple(drafter or ("prediction", "ngram")),
        policy=policy,
        host=host,
        port=port,
        api_key_file=api_key_file,
        settings={
            "max_waiting": max_waiting,
            "max_choices": max_choices,
            "max_output_tokens": max_output_tokens,
            "max_body_bytes": max_body_bytes,
            "body_seconds": body_seconds,
            "request_seconds": request_seconds,
            "grace_seconds": grace_seconds,
            "cors_origins": tuple(cors_origin or ()),
        },
        engine={
            "max_running": max_running,
            "cache_tokens": cache_tokens,
            "chunk_tokens": chunk_tokens,
            "prefix_tokens": prefix_tokens,
            "memory": memory,
            "max_nodes": max_nodes,
            "shadow": shadow,
            "shadow_waiting": shadow_waiting,
        },
        loading=Loading(dtype, quantize, device, implementation, threads),
    )
    job.check()
    with starting():
        from outrider.cli.serving import run

    run(job)
