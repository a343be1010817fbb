"""The `outrider` command and its subcommands."""

from typing import Annotated

import typer

from outrider.cli import bench, certify, chat, explore, generate, models, plan, profile, replay, serve, simulate
from outrider.cli.reporting import ReportingGroup

__all__ = ["app"]

app = typer.Typer(
    name="outrider",
    cls=ReportingGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Exact, adaptive speculative decoding: the target model's own text, in fewer passes.",
)
app.command("generate")(generate.command)
app.command("chat")(chat.command)
app.command("serve")(serve.command)
app.command("profile")(profile.command)
app.command("certify")(certify.command)
app.add_typer(bench.app, name="bench")
app.add_typer(replay.app, name="replay")
app.command("simulate")(simulate.command)
app.command("plan")(plan.command)
app.command("explore")(explore.command)
app.add_typer(models.app, name="models")


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"outrider {version('outrider')}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, metavar="", help="Print the version."),
    ] = False,
) -> None:
    """Options of the command itself."""
