"""Numbers of a model's metadata, checked before anything computes with them.

This module knows keys and values, not what they mean. Invariant: a number that comes out has the declared kind and lies
in the declared range; any other value is refused by key, value and remedy.
"""

import math
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from outrider.errors import DamagedModelError

__all__ = ["count", "damaged", "number", "typed"]

Kind = TypeVar("Kind")

_LARGEST = sys.float_info.max


def damaged(where: str, key: str, value: object, wanted: str) -> DamagedModelError:
    """The sentence for a value that cannot be meant."""
    return DamagedModelError(
        f"{where}: {key} is {value!r}; it must be {wanted}, so correct it or fetch the file again."
    )


def count(values: Mapping[str, Any], key: str, where: str, *, minimum: int = 1) -> int | None:
    """A whole number, or None where there is none.

    Raises:
        DamagedModelError: it is no whole number, or below the minimum.
    """
    value = values.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or value < minimum:
        raise damaged(where, key, value, f"a whole number of {minimum} or more")
    return int(value)


def number(
    values: Mapping[str, Any], key: str, where: str, *, zero: bool = False, maximum: float = math.inf
) -> float | None:
    """A finite number, or None where there is none.

    Args:
        values: the metadata.
        key: whose value is wanted.
        where: the file, for messages.
        zero: whether 0 is allowed; what lies below never is.
        maximum: the largest value.

    Raises:
        DamagedModelError: it is no number, or out of range.
    """
    value = values.get(key)
    if value is None:
        return None
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if not known or not (0 <= value <= min(maximum, _LARGEST)) or (value == 0 and not zero):  # NaN is nowhere
        lowest = "of 0 or more" if zero else "above 0"
        highest = "" if maximum == math.inf else f", {maximum:g} at most"
        raise damaged(where, key, value, f"a number {lowest}{highest}")
    return float(value)


def typed(values: Mapping[str, Any], key: str, where: str, kind: type[Kind], wanted: str) -> Kind | None:
    """A value of a type, or None where there is none.

    Raises:
        DamagedModelError: it has another type.
    """
    value = values.get(key)
    if value is not None and not isinstance(value, kind):
        raise damaged(where, key, value, wanted)
    return value
