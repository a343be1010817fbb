"""A file as records: lines of text, lines of JSON, or one JSON list; packed with gzip or not.

This module knows syntax only. Invariant: each record comes with the number of its line (for a JSON list: of its
entry), so that whoever finds fault with it can say where.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import InvalidRequestError

__all__ = ["Record", "read_records", "read_text", "suffix_of"]


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a file.

    Attributes:
        place: where it stands, for people: "prompts.jsonl, line 3".
        number: its line or entry, from 1.
        value: its fields; for a line of plain text the text itself.
    """

    place: str
    number: int
    value: dict[str, Any] | str


def read_records(path: Path) -> Iterator[Record]:
    """The records of a file, blank lines left out.

    Files that end in `.txt` hold plain lines. Others hold JSON if they begin with `{` (an object a line) or `[` (one
    list), and plain lines if not.

    Raises:
        InvalidRequestError: the file cannot be read, holds nothing, or is not JSON where it should be.
    """
    text = read_text(path)
    if not text.strip():
        raise InvalidRequestError(f"{path} is empty; give a file with at least one prompt.")
    first = text.lstrip()[0]
    if suffix_of(path) == ".txt" or first not in "{[":
        if suffix_of(path) in (".json", ".jsonl"):
            raise InvalidRequestError(f"{path} is not JSON; name it .txt if each of its lines is a prompt.")
        return _plain(path, text)
    return _objects(path, text) if first == "{" else _entries(path, text)


def suffix_of(path: Path) -> str:
    """The ending of a file's name; of a packed one that of what is in it."""
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


def read_text(path: Path) -> str:
    """The text of a file, unpacked.

    Raises:
        InvalidRequestError: the file cannot be read, or is no text.
    """
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except FileNotFoundError as error:
        raise InvalidRequestError(f"{path} does not exist; give the path of a file.") from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{path} is not text in UTF-8 (byte {error.start}); convert it.") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidRequestError(f"{path} is a damaged gzip file ({error}); fetch it again.") from error
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read ({error.strerror}); give a readable file.") from error


def _plain(path: Path, text: str) -> Iterator[Record]:
    for number, line in enumerate(text.split("\n"), 1):  # a prompt may hold other line separators
        if line.strip():
            yield Record(f"{path.name}, line {number}", number, line.strip())


def _objects(path: Path, text: str) -> Iterator[Record]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            place = f"{path.name}, line {number}"
            yield Record(place, number, _object(place, _parse(place, line)))


def _entries(path: Path, text: str) -> Iterator[Record]:
    values = _parse(path.name, text)
    if not values:
        raise InvalidRequestError(f"{path} is an empty list; give a file with at least one prompt.")
    for number, value in enumerate(values, 1):
        place = f"{path.name}, entry {number}"
        yield Record(place, number, _object(place, value))


def _parse(place: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        reason = f"{error.msg}, character {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise InvalidRequestError(f"{place} is not JSON ({reason}); correct it or leave it out.") from error
    except RecursionError as error:
        raise InvalidRequestError(f"{place} is nested too deeply; give plain records.") from error


def _object(place: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{place} is {value!r:.40}; give a JSON object with the prompt's fields.")
    return value
