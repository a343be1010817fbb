"""Errors as OpenAI's clients know them: a status and `{"error": {message, type, param, code}}`.

This module knows exceptions; it does not know what was asked. Invariant: a message is one sentence in plain ASCII
letters, names what is wrong, and repeats at most a short piece of what was sent.
"""

import reprlib
from collections.abc import Sequence
from typing import Any

from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params
from pydantic import BaseModel

from outrider.errors import (
    BusyError,
    GenerationError,
    InvalidRequestError,
    OutriderError,
    PromptTooLongError,
    StoppedError,
    UnsupportedError,
)

__all__ = ["ErrorBody", "ErrorDetail", "Refusal", "refusal_of", "refusal_of_fields"]

KNOWN_ELSEWHERE = frozenset(
    [
        *chat_params.CompletionCreateParamsBase.__annotations__,
        *completion_params.CompletionCreateParamsBase.__annotations__,
        "stream",
    ]
)
"""Fields of OpenAI's own interface."""


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of every answer that is an error."""

    error: ErrorDetail


class Refusal(Exception):  # noqa: N818 - the word for an answer, not for a fault
    """An answer that is an error.

    Args:
        status: of HTTP.
        message: one sentence.
        param: the field it is about.
        code: for programs.
        headers: further headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers)
        detail = ErrorDetail(message=_plain(message), type=_kind(status), param=param, code=code)
        self.body = ErrorBody(error=detail)


def _kind(status: int) -> str:
    """The name that OpenAI's interface has for a status."""
    names = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    return names.get(status, "invalid_request_error" if status < 500 else "server_error")


def refusal_of(error: Exception) -> Refusal:
    """The answer for an exception."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, PromptTooLongError):
        return Refusal(400, str(error), code="context_length_exceeded")
    if isinstance(error, InvalidRequestError):
        code = "unsupported_value" if isinstance(error, UnsupportedError) else "invalid_value"
        return Refusal(400, str(error), param=str(error).split(" ", 1)[0], code=code)
    if isinstance(error, BusyError):
        return Refusal(429, str(error), code="server_full", headers=[("Retry-After", "1")])
    if isinstance(error, StoppedError):
        return Refusal(503, str(error), code="stopping", headers=[("Retry-After", "5")])
    if isinstance(error, GenerationError | OutriderError):
        return Refusal(500, str(error), code="generation_failed")
    return Refusal(500, "the server has a fault; look at its log.", code="internal_error")


def refusal_of_fields(errors: Sequence[Any]) -> Refusal:
    """The answer for a body that pydantic refused: its first fault, an unknown field before all others."""
    unknown = [error for error in errors if error["type"] == "extra_forbidden"]
    error = _closest(unknown or errors)
    path = [str(part) for part in error["loc"] if part != "body" and not _is_branch(part)]
    name = ".".join(path)
    if unknown:
        known = len(path) == 1 and path[0] in KNOWN_ELSEWHERE
        sentence = "is not supported by this server" if known else "is no parameter of this request"
        code = "unsupported_parameter" if known else "unknown_parameter"
        return Refusal(400, f"{_short(name)} {sentence}; leave it out.", param=_short(name), code=code)
    if error["type"] == "missing":
        return Refusal(400, f"{name or 'the body'} is missing; give it.", param=name or None, code="missing_parameter")
    if error["type"] == "json_invalid" or not path:
        reason = str(error.get("ctx", {}).get("error", error["msg"])).removeprefix("Value error, ")
        about = reason if error["type"] == "value_error" else f"the body is no JSON object that fits: {reason}"
        return Refusal(400, f"{about.rstrip('.')}.", code="invalid_body")
    reason = str(error["msg"]).removeprefix("Value error, ").rstrip(".")
    message = f"{_short(name)} is {_shown(error.get('input'))}: {reason[:1].lower()}{reason[1:]}."
    return Refusal(400, message, param=_short(name), code="invalid_value")


def _closest(errors: Sequence[Any]) -> Any:
    """Of the first field's faults the deepest and furthest on: the branch of a union that was meant."""
    first = errors[0]["loc"][:2]
    mine = [error for error in errors if error["loc"][:2] == first]
    return max(reversed(mine), key=_depth)


def _depth(error: Any) -> tuple[int, bool, int]:
    """How much of a value was right before the fault."""
    last = error["loc"][-1]
    return len(error["loc"]), not error["type"].endswith("_type"), last if isinstance(last, int) else -1


def _is_branch(part: Any) -> bool:
    """Whether a part of a place names one branch of a union instead of a field."""
    return isinstance(part, str) and (not part.isidentifier() or part in ("str", "int", "TextPart"))


def _shown(value: Any) -> str:
    """A short piece of what was sent; long lists are not written out for it."""
    return _short(repr(value) if isinstance(value, str) else reprlib.repr(value))


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} letters)"


def _plain(message: str) -> str:
    plain = message.encode("ascii", "backslashreplace").decode()
    return plain if len(plain) <= 800 else f"{plain[:400]} ... {plain[-300:]}"
