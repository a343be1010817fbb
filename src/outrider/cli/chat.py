"""`outrider chat`: talk with a model in the terminal, your own or a server's."""

from typing import Annotated

import typer

from outrider.cli.options import Device, Dtype, Implementation, Quantize, Threads, starting

__all__ = ["command"]

_OWN, _SERVER = "A model of your own", "A server"


def command(
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="As in generate (default smollm2); with --endpoint the server's name for it."
        ),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(help="An OpenAI-compatible server; its key is in OPENAI_API_KEY.", rich_help_panel=_SERVER),
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system message before all others.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, metavar="<int>", help="Tokens of an answer at most.")] = 512,
    temperature: Annotated[float | None, typer.Option(help="0 takes the most probable token.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed and same words, same answers.")] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            "-d",
            metavar="<text>",
            help="As in generate; may be repeated. Default: ngram.",
            rich_help_panel=_OWN,
        ),
    ] = None,
    policy: Annotated[str | None, typer.Option(help="As in generate.", rich_help_panel=_OWN)] = None,
    dtype: Dtype = "auto",
    quantize: Quantize = "none",
    device: Device = "auto",
    implementation: Implementation = "auto",
    threads: Threads = None,
) -> None:
    """Talk with a model: a line is a message, an empty line or /exit ends, /new begins anew.

    Answers go to standard output, everything else to standard error.
    """
    from outrider.cli.chat_job import ChatJob
    from outrider.cli.loading import Loading

    job = ChatJob(
        model=model,
        endpoint=endpoint,
        system=system,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        drafters=tuple(drafter or ()),
        policy=policy,
        loading=Loading(dtype, quantize, device, implementation, threads),
    )
    job.check()
    with starting():
        from outrider.cli.chatting import run

    run(job)
