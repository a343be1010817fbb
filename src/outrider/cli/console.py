"""Where lines go: text to standard output, everything about it to standard error.

This module knows terminals; it does not know models. Invariants: what is not a terminal gets no colour, no progress and
no line that is broken to fit a width; no library speaks to the user directly.
"""

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

__all__ = ["fail", "keep_quiet", "note", "print_rows", "progress_bar", "waiting"]


def note(message: str | Text, style: str = "") -> None:
    """Print a line to standard error; a terminal, not this program, breaks it where it is too long."""
    _messages().print(Text(message) if isinstance(message, str) else message, style=style, soft_wrap=True)


def fail(message: str) -> None:
    """Say what went wrong in one sentence."""
    text = message[:1].lower() + message[1:] if message[:2].istitle() else message
    note(Text.assemble(("error: ", "bold red"), text))


def keep_quiet() -> None:
    """Let no library speak: warnings and logs are for developers, progress bars for terminals."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    logging.getLogger().addHandler(logging.NullHandler())
    logging.getLogger("outrider").addHandler(_NoteHandler(logging.WARNING))
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")


def print_rows(rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), to_stderr: bool = False) -> None:
    """Print a table without lines, as wide as its cells.

    Args:
        rows: cells; all rows have the same number of them.
        right: numbers of the columns that are aligned to the right.
        to_stderr: where it goes.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        (sys.stderr if to_stderr else sys.stdout).write("  ".join(cells).rstrip() + "\n")


@contextlib.contextmanager
def waiting(label: str) -> Iterator[None]:
    """A spinner on a terminal while something takes its time."""
    console = _messages()
    with console.status(label) if console.is_terminal else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal while something long runs; gives a function to call once a step."""
    from rich.progress import Progress

    console = _messages()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(label, total=total)
        yield lambda: progress.advance(task)


class _NoteHandler(logging.Handler):
    """Shows the program's own warnings as lines like all others."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record, without its traceback."""
        note(Text.assemble(("note: ", "bold yellow"), record.getMessage()))


def _messages() -> Console:
    return Console(stderr=True, highlight=False)
