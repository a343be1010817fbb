"""`outrider models`: list, pull and inspect models, and choose what a draft model may say."""

import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from outrider.cli import vocabulary
from outrider.cli.console import print_rows
from outrider.cli.options import Json, print_json

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="List, pull and inspect models; choose a draft model's tokens.")

_Name = Annotated[str, typer.Argument(help="smollm2, a model folder, a .gguf file or a hub name.", show_default=False)]


@app.command("list")
def list_command(as_json: Json = False) -> None:
    """Show the built-in models and those that are on this machine."""
    from outrider.models.loading import list_models

    entries = [_plain(asdict(entry) | {"pulled": entry.pulled}) for entry in list_models()]
    if as_json:
        print_json(entries)
        return
    rows = [(e["name"], e["origin"], _cell("bytes", e["disk_bytes"]), e["path"] or "not pulled yet") for e in entries]
    print_rows([("name", "origin", "size", "path"), *rows], right=(2,))


@app.command("pull")
def pull_command(name: _Name) -> None:
    """Download a model, if it is not here yet, and print where it lies."""
    from outrider.models.loading import pull_model

    sys.stdout.write(f"{pull_model(name, progress=sys.stderr.isatty())}\n")


@app.command("inspect")
def inspect_command(name: _Name, as_json: Json = False) -> None:
    """Show a model's family, parameters, bytes, context and template without reading its weights."""
    from outrider.models.loading import inspect_model

    info = _plain(asdict(inspect_model(name, progress=sys.stderr.isatty())))
    if as_json:
        print_json(info)
    else:
        print_rows([(_label(key), _cell(key, value)) for key, value in info.items()])


app.command("vocabulary")(vocabulary.command)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    known = (str, int, float, bool, list, tuple, type(None))
    return {name: value if isinstance(value, known) else str(value) for name, value in values.items()}


def _label(key: str) -> str:
    words = {"num_parameters": "parameters", "num_layers": "layers", "disk_bytes": "size", "vocab_size": "vocabulary"}
    return words.get(key, key.removeprefix("has_").replace("_", " "))


def _cell(key: str, value: Any) -> str:
    """A value for people; token ids and the like without thousands separators."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and key.endswith("bytes"):
        return f"{value / 1e6:,.1f} MB"
    if isinstance(value, int):
        return f"{value:,}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
