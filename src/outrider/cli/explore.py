"""`outrider explore`: the page that shows why speculative decoding works."""

from typing import Annotated

import typer

from outrider.cli.console import note

__all__ = ["command"]


def command(
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="Model of the live view: as in generate, or toy. Default: smollm2 if it is here, else toy.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="<int>", help="Port; 0 takes a free one.")] = 8719,
    no_browser: Annotated[bool, typer.Option("--no-browser", metavar="", help="Do not open a browser.")] = False,
) -> None:
    """Open a page: the maths with sliders, the real verifier on a toy, one round step by step, a live run.

    It needs no network. Views can be shared by their address; Ctrl-C ends it.
    """
    from outrider.cli.exploring import serve

    note("press Ctrl-C to end")
    serve(model, host, port, open_browser=not no_browser)
