"""Where the prompt and the expected output come from: the argument, a file or standard input.

This module reads text; it does not know tokens. Invariant: what it gives is text that a tokenizer can read, and never
empty.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from outrider.errors import InvalidRequestError

__all__ = ["check_one_source", "check_text", "read_prediction", "read_prompt"]


def read_prompt(prompt: str | None, file: Path | None, *, raw: bool) -> str:
    """Give the prompt.

    Args:
        prompt: the argument.
        file: the file; `-` is standard input, which is also read where neither is given.
        raw: keep the text as it is; else one line end at its end is dropped, so that `echo hi |` means "hi".

    Raises:
        InvalidRequestError: there are two prompts or none, or it is empty or no text.
    """
    if prompt is not None and file is not None:
        raise InvalidRequestError(f"prompt is given twice, as an argument and as --file {file}; give one of them.")
    if prompt is None:
        prompt = _read(file)
        prompt = prompt if raw else prompt.removesuffix("\n").removesuffix("\r")
    else:
        check_text("prompt", prompt)
    if not (prompt if raw else prompt.strip()):
        raise InvalidRequestError("prompt is empty; give some text as an argument, with --file, or on standard input.")
    return prompt


def check_one_source(**given: object) -> None:
    """Refuse prompts from a file of many together with one prompt.

    Raises:
        InvalidRequestError: as said.
    """
    if given["prompts"] is not None and (given["prompt"] is not None or given["file"] is not None):
        one = "an argument" if given["prompt"] is not None else f"--file {given['file']}"
        raise InvalidRequestError(f"prompts are given twice, as {one} and as --prompts {given['prompts']}; give one.")


def read_prediction(file: Path) -> str:
    """Give the output that the caller expects, as it stands in a file.

    Raises:
        InvalidRequestError: the file cannot be read, is no text or is empty.
    """
    text = _decoded(file.read_bytes, f"--prediction {file}")
    if not text:
        raise InvalidRequestError(f"--prediction {file} is empty; give a file with the output that you expect.")
    return text


def check_text(name: str, text: str) -> None:
    """Refuse an argument with bytes that are no UTF-8 text.

    Raises:
        InvalidRequestError: as said.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{name} is {text!a}, which is no UTF-8 text; convert it first.") from error


def _read(file: Path | None) -> str:
    """Text of a file or of standard input, line ends as they are."""
    is_stdin = file is None or str(file) == "-"
    where = "standard input" if is_stdin else f"--file {file}"
    if is_stdin and sys.stdin.isatty():
        if file is None:
            raise InvalidRequestError("prompt is missing; give it as an argument, with --file, or on standard input.")
        sys.stderr.write("type the prompt, then Ctrl-D\n")
    return _decoded(sys.stdin.buffer.read if file is None or is_stdin else file.read_bytes, where)


def _decoded(read: Callable[[], bytes], where: str) -> str:
    """Bytes as text, line ends as they are."""
    try:
        data = read()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise InvalidRequestError(f"{where} cannot be read ({error.strerror}); give a readable text file.") from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"{where} is no UTF-8 text (byte {error.start} is 0x{data[error.start]:02x}); convert it first."
        ) from error
