"""How a call ends: results leave with status 0, everything else with one sentence and a status of its own.

This module knows errors; it does not know what any subcommand does. Invariant: only an error that nobody foresaw, a
fault of this program, shows a traceback.
"""

import errno
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from outrider.cli.console import fail
from outrider.errors import OutriderError

__all__ = ["ReportingGroup"]

_FAILED, _MISUSED, _INTERRUPTED = 1, 2, 130
_MEMORY_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")


class ReportingGroup(TyperGroup):
    """The root command; it turns errors into sentences, in tests as in use."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        """Run the command and leave the process with its status."""
        given = list(sys.argv[1:] if args is None else args)
        options["standalone_mode"] = False
        try:
            status = super().main(given, *rest, **options)
        except typer.Abort:
            status = _INTERRUPTED
        except Exception as error:
            status = _failure(error, given)
            if status is None:
                raise
        if status == _INTERRUPTED:
            fail("interrupted; nothing was left half-written.")
        sys.exit(status or 0)


def _failure(error: Exception, given: Sequence[str]) -> int | None:
    """Tell what went wrong; gives the exit status, or None for an error that nobody foresaw."""
    if isinstance(error, OutriderError):
        fail(str(error))
    elif hasattr(error, "format_message"):  # what the option parser raises
        return _misuse(error, given)
    elif _is_memory(error):
        fail(
            "the machine ran out of memory; choose a smaller model, --dtype bfloat16, a shorter prompt or fewer "
            "--max-tokens."
        )
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        _drop_output()
        fail(f"the output cannot be written ({error.strerror}); free some space or write it elsewhere.")
    else:
        return None
    return _FAILED


def _misuse(error: Any, given: Sequence[str]) -> int:
    """One sentence for a command line that cannot be read."""
    if type(error).__name__ == "NoArgsIsHelpError":  # the help text was the answer
        typer.echo(error.format_message(), err=True)
        return _MISUSED
    path = error.ctx.command_path if getattr(error, "ctx", None) else "outrider"
    fail(f"{_words(error, given)}; see `{path} --help`.")
    return _MISUSED


def _words(error: Any, given: Sequence[str]) -> str:
    """The parser's message with the value that was given, and its best guess of what was meant."""
    if guesses := getattr(error, "possibilities", None):
        return f"there is no option {error.option_name} (did you mean {guesses[0]}?)"
    message, _, guess = str(error.format_message()).partition(" Did you mean ")
    message = message.rstrip(".")
    if "unexpected extra argument" in message:
        return f"{message}; put a text of several words in quotes"
    if guess:
        return f"{message} (did you mean {guess.rstrip('?')}?)"
    names: Sequence[str] = getattr(getattr(error, "param", None), "opts", ())
    value = _value_of(names, given)
    if value is None:
        return message
    _, _, reason = message.partition(": ")
    return f"{names[0]} is {value!r}: {reason[:1].lower()}{reason[1:]}"


def _value_of(names: Sequence[str], given: Sequence[str]) -> str | None:
    """What was written behind an option, or None if it was not found."""
    for place, word in enumerate(given):
        if word in names and place + 1 < len(given):
            return given[place + 1]
        name, equals, value = word.partition("=")
        if equals and name in names:
            return value
    return None


def _is_memory(error: Exception) -> bool:
    """Whether this is one of the many ways of saying that memory ran out."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _MEMORY_WORDS)


def _drop_output() -> None:
    """Forget what could not be written, so that the interpreter does not try again while it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())  # type: ignore[union-attr]  # it was written to
