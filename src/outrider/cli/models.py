"""`outrider models`: list, pull and inspect models."""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from outrider.cli.console import messages

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="List, pull and inspect models.")

_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
_Name = Annotated[str, typer.Argument(help="smollm2, a model folder, a .gguf file or a hub name.", show_default=False)]


@app.command("list")
def list_command(as_json: _Json = False) -> None:
    """Show the built-in models and those that are on this machine."""
    from outrider.models.loading import list_models

    entries = [_plain(asdict(entry)) for entry in list_models()]
    if as_json:
        typer.echo(json.dumps(entries, indent=2))
    else:
        _print_rows(entries)


@app.command("pull")
def pull_command(name: _Name) -> None:
    """Download a model, if it is not here yet, and print where it lies."""
    from outrider.models.loading import pull_model

    typer.echo(str(pull_model(name)))


@app.command("inspect")
def inspect_command(name: _Name, as_json: _Json = False) -> None:
    """Show a model's family, parameters, bytes, context and template without reading its weights."""
    from outrider.models.loading import inspect_model

    info = _plain(asdict(inspect_model(name)))
    if as_json:
        typer.echo(json.dumps(info, indent=2))
    else:
        _print_pairs(info)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    known = (str, int, float, bool, list, tuple, type(None))
    return {name: value if isinstance(value, known) else str(value) for name, value in values.items()}


def _print_rows(entries: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(*(entries[0] if entries else ["name"]), box=None, pad_edge=False)
    for entry in entries:
        table.add_row(*(_cell(name, value) for name, value in entry.items()))
    _output().print(table)


def _print_pairs(info: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in info.items():
        table.add_row(name.replace("_", " "), _cell(name, value))
    _output().print(table)


def _output() -> Any:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not messages.is_terminal)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name.endswith("bytes"):
        return f"{value / 1e6:,.1f} MB"
    if isinstance(value, int):
        return f"{value:,}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
