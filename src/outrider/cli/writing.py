"""How a generation is written while it runs: final text as it comes, or tokens marked by who wrote them.

This module knows text events; it does not know figures. Invariant: standard output gets the text and nothing else; with
`show_draft` it gets every token as it is, and what of that is not text is said at the end.
"""

import sys
from types import TracebackType

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from rich.text import Text

from outrider.cli.console import note
from outrider.engine.outbox import TextEvent
from outrider.models.tokenizer import Tokenizer

__all__ = ["Writer", "print_text"]

_COLOURS = ("green", "cyan", "magenta", "yellow", "blue")
_OPEN, _CLOSE = "\u2039", "\u203a"  # single angle quotes, around drafted tokens where there are no colours


def print_text(text: str) -> None:
    """Write one whole text and a line end."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Writer:
    """Writes text events to standard output.

    Args:
        tokenizer: the target's tokenizer.
        show_draft: write every token as it is instead of the final text: plain for the target's own tokens, a colour
            for each drafter's, or marks around them where standard output takes no colours.
    """

    def __init__(self, tokenizer: Tokenizer, *, show_draft: bool) -> None:
        self._decoder = tokenizer.stream(skip_special=False) if show_draft else None
        console = Console()
        self._has_colours = console.is_terminal and not console.no_color
        self._styles: dict[str, Style] = {}
        self._source: str | None = None  # drafter of the last token; None for the target
        self._text = self._shown = ""

    def __enter__(self) -> "Writer":
        """Begin a text."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the line, also where the text broke off."""
        if kind is not None and issubclass(kind, OSError):
            return  # nobody reads any more
        self._mark(None)
        if self._text or self._shown or kind is None:
            self._write("\n")
        if kind is None and self._decoder is not None:
            self._explain()

    def __call__(self, event: TextEvent) -> None:
        """Show one event."""
        self._text += event.text
        if self._decoder is None:
            self._write(event.text)
            return
        for token, who in zip(event.event.tokens, event.event.provenance, strict=True):
            self._show(self._decoder.push((token,)), who.source if who.accepted else None)
        if event.event.finish_reason is not None:
            self._show(self._decoder.flush(), self._source)

    def _show(self, piece: str, source: str | None) -> None:
        """Write a piece in the colour, or within the marks, of its author."""
        self._shown += piece
        if source is not None:
            count = len(self._styles)
            self._styles.setdefault(source, Style(color=_COLOURS[count % len(_COLOURS)], bold=True))
        if not self._has_colours:
            self._mark(source)
            self._write(piece)
        else:
            style = Style.null() if source is None else self._styles[source]
            self._write(style.render(piece, color_system=ColorSystem.STANDARD))
        self._source = source

    def _mark(self, source: str | None) -> None:
        """Close and open marks where the author changes."""
        if self._decoder is None or self._has_colours or source == self._source:
            return
        self._write((_CLOSE if self._source is not None else "") + (_OPEN if source is not None else ""))
        self._source = source

    def _explain(self) -> None:
        """Say what the colours mean and what of the shown tokens is not part of the text."""
        names = [Text(f"{name} ", style=style) for name, style in self._styles.items()] or [Text("nobody ")]
        plain = "plain" if self._has_colours else f"outside {_OPEN}{_CLOSE}"
        note(Text.assemble("drafted by: ", *names, f"({plain}: the target's own)"))
        extra = self._shown[len(self._text) :]
        if extra and self._shown.startswith(self._text):
            note(f"shown, but not part of the text: {extra!r}")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
