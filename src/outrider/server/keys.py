"""API keys: read once, compared in constant time, never shown.

This module knows no requests. Invariants: comparing takes the same time whatever was given; what leaves this module is
a caller's number or the digest that separates callers, never a key.
"""

import hashlib
import hmac
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import InvalidRequestError

__all__ = ["ENVIRONMENT", "Caller", "KeyRing", "read_keys"]

ENVIRONMENT = "OUTRIDER_API_KEYS"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks.

    Attributes:
        name: for logs: "key 2" is the second key, "anyone" where no key is needed.
        scope: what separates the callers' shared drafter state from each other's.
    """

    name: str
    scope: str


class KeyRing:
    """The keys of a server.

    Args:
        keys: the keys; none lets everybody in.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def find(self, authorization: str | None) -> Caller | None:
        """Who sends this `Authorization` header; None where it holds no known key."""
        if not self._digests:
            return Caller("anyone", "")
        kind, _, key = (authorization or "").partition(" ")
        given = _digest(key.strip())
        found = [number for number, known in enumerate(self._digests, 1) if hmac.compare_digest(known, given)]
        if kind.lower() != "bearer" or not found:
            return None
        return Caller(f"key {found[0]}", self._digests[found[0] - 1].hex())


def read_keys(file: Path | None) -> tuple[str, ...]:
    """Keys of a file, one a line, and of the environment variable, separated by commas.

    Raises:
        InvalidRequestError: the file cannot be read, or holds none.
    """
    given = os.environ.get(ENVIRONMENT, "").split(",")
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequestError(f"--api-key-file {file} cannot be read; give a readable text file.") from error
        lines = [line for line in lines if line.strip() and not line.startswith("#")]
        if not lines:
            raise InvalidRequestError(f"--api-key-file {file} holds no key; put one on each line.")
        given += lines
    return tuple(dict.fromkeys(key.strip() for key in given if key.strip()))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
