"""Plots of the command line as files: a page that needs no network, or a picture."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from outrider.errors import InvalidRequestError, UnsupportedError

__all__ = ["write_plots"]

Plot = tuple[str, Sequence[Mapping[str, Any]], str]
"""Name of the plot, its rows, its title."""


def write_plots(path: Path, plots: Sequence[Plot]) -> None:
    """Write plots below each other into one file.

    Args:
        path: a file that ends in .html, .svg or .png.
        plots: what to draw.

    Raises:
        InvalidRequestError: another ending, or the file cannot be written.
        UnsupportedError: the extra `explore` is not installed.
    """
    if path.suffix not in (".html", ".svg", ".png"):
        raise InvalidRequestError(f"--plot is {str(path)!r}; give a file that ends in .html, .svg or .png.")
    if find_spec("altair") is None or find_spec("vl_convert") is None:
        raise UnsupportedError("--plot needs altair and vl-convert-python: `pip install 'outrider[explore]'`.")
    try:
        path.write_bytes(_render(path.suffix, plots))
    except OSError as error:
        raise InvalidRequestError(f"--plot {path} cannot be written ({error.strerror}); give another file.") from error


def _render(suffix: str, plots: Sequence[Plot]) -> bytes:
    import vl_convert

    from outrider.explorer.charts import filled

    parts = [filled(name, rows) | {"title": title} for name, rows, title in plots]
    whole = {"vconcat": parts}
    if suffix == ".svg":
        return str(vl_convert.vegalite_to_svg(whole)).encode()
    if suffix == ".png":
        return bytes(vl_convert.vegalite_to_png(whole, scale=2))
    return str(vl_convert.vegalite_to_html(whole, bundle=True)).encode()
