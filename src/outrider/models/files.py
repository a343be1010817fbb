"""The small files of a model folder, read so that damage becomes one sentence.

This module knows text and JSON; it does not know what is in them. Invariant: what comes back is a text or a JSON
object, and a file that may not be read is told apart from one that is damaged.
"""

import json
from pathlib import Path
from typing import Any

from outrider.errors import DamagedModelError, ModelError

__all__ = ["PICKLE_SUFFIXES", "read_json", "read_text", "unreadable"]

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
"""Weight files that may run code when they are loaded; they are never opened."""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no file.

    Raises:
        DamagedModelError: the file is no JSON object.
        ModelError: the file may not be read.
    """
    if not path.is_file():
        return {}
    try:
        values = json.loads(read_text(path))
    except ValueError as error:
        raise DamagedModelError(f"The file {path} is no valid JSON ({error}); fetch the file again.") from error
    if not isinstance(values, dict):
        raise DamagedModelError(f"The file {path} holds no JSON object; fetch the file again.")
    return values


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        DamagedModelError: the file is no UTF-8 text.
        ModelError: the file may not be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DamagedModelError(f"The file {path} is no UTF-8 text ({error}); fetch the file again.") from error
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> ModelError:
    """The sentence for a file that the system does not hand out."""
    return ModelError(f"The file {error.filename or path} cannot be read ({error.strerror}); check its permissions.")
