"""Text such as `ngram:max=4,min=2` turned into a name and checked values.

Drafters and policies are both written this way on the command line and in requests. This module knows neither of them;
each registry says which options its names have. Invariant: a value that comes out has the declared type and lies in the
declared range, and nothing that was written is silently ignored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from outrider.errors import InvalidRequestError

__all__ = ["Option", "choose", "parse_spec", "read_options"]

Entry = TypeVar("Entry")

_BOOLEANS = {"true": True, "false": False}
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


@dataclass(frozen=True, slots=True)
class Option:
    """One setting of a drafter or policy.

    Attributes:
        name: how it is written.
        kind: int, float, bool or str.
        help: one line for people.
        default: the value when it is left out; None where `required` or where leaving it out means something of its
            own.
        required: whether it must be given.
        minimum, maximum: bounds of a number, both included.
    """

    name: str
    kind: type[int] | type[float] | type[bool] | type[str]
    help: str
    default: Any = None
    required: bool = False
    minimum: float | None = None
    maximum: float | None = None

    @property
    def meaning(self) -> str:
        """What may be written, in words: "a whole number from 1 to 32"."""
        words = _KINDS[self.kind]
        if self.minimum is not None and self.maximum is not None:
            return f"{words} from {self.minimum:g} to {self.maximum:g}"
        if self.minimum is not None:
            return f"{words} of at least {self.minimum:g}"
        return words if self.maximum is None else f"{words} of at most {self.maximum:g}"

    def read(self, text: str) -> Any:
        """The value that a text stands for.

        Raises:
            ValueError: the text has another type or is out of range.
        """
        if self.kind is bool:
            if text.lower() not in _BOOLEANS:
                raise ValueError(text)
            return _BOOLEANS[text.lower()]
        value = self.kind(text)
        if isinstance(value, str):
            if not value:
                raise ValueError(text)
            return value
        above = self.minimum is None or value >= self.minimum
        below = self.maximum is None or value <= self.maximum
        if not (above and below):  # NaN is neither
            raise ValueError(text)
        return value


def parse_spec(text: str) -> tuple[str, dict[str, str]]:
    """Split `name:key=value,key=value`.

    Returns:
        The name and the options as written.

    Raises:
        InvalidRequestError: there is no name, an option is no `key=value`, or one is given twice.
    """
    name, _, rest = text.strip().partition(":")
    if not name:
        raise InvalidRequestError(f"{text!r} has no name; write it as name:option=value,option=value.")
    given: dict[str, str] = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not key or not equals:
            raise InvalidRequestError(f"{part!r} in {text!r} is no option; write it as option=value.")
        if key in given:
            raise InvalidRequestError(f"{key} is given twice in {text!r}; give it once.")
        given[key] = value
    return name, given


def choose(what: str, name: str, entries: Mapping[str, Entry]) -> Entry:
    """The entry of a name.

    Raises:
        InvalidRequestError: there is no such name; the sentence lists those that exist.
    """
    if name not in entries:
        raise InvalidRequestError(f"{what} {name!r} does not exist; choose one of {', '.join(sorted(entries))}.")
    return entries[name]


def read_options(owner: str, given: Mapping[str, str], options: Sequence[Option]) -> dict[str, Any]:
    """Check written options against the declared ones.

    Args:
        owner: whose options they are, for the error's sentence ("drafter ngram").
        given: options as written.
        options: options that exist.

    Returns:
        A value for every declared option, defaults filled in.

    Raises:
        InvalidRequestError: an option is unknown, missing, ill-typed or out of range.
    """
    declared = {option.name: option for option in options}
    for name in given:
        if name not in declared:
            known = f"it has {', '.join(declared)}" if declared else "it has none"
            raise InvalidRequestError(f"{owner} has no option {name!r}; {known}.")
    values: dict[str, Any] = {}
    for name, option in declared.items():
        if name not in given:
            if option.required:
                raise InvalidRequestError(f"{owner} needs the option {name}; add {name}=..., {option.meaning}.")
            values[name] = option.default
            continue
        try:
            values[name] = option.read(given[name])
        except ValueError as error:
            message = f"{name} of {owner} is {given[name]!r}; give {option.meaning}."
            raise InvalidRequestError(message) from error
    return values
