"""Where lines go: text to standard output, everything about it to standard error."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console

__all__ = ["fail", "messages", "progress_bar"]

messages = Console(stderr=True, highlight=False)
"""Notes, progress, tables and errors."""


def fail(message: str) -> int:
    """Say what went wrong in one sentence.

    Returns:
        The exit status.
    """
    text = message[:1].lower() + message[1:] if message[:2].istitle() else message
    messages.print(f"[bold red]error:[/] {_escape(text)}", soft_wrap=True)
    return 1


@contextlib.contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on standard error while something long runs; gives a function to call once a step."""
    from rich.progress import Progress

    with Progress(console=messages, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(label, total=total)
        yield lambda: progress.advance(task)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
