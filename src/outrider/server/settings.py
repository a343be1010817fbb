"""What the operator of a server decides, apart from the engine's own settings.

Invariant: a settings object is valid, and it never shows a key.
"""

from dataclasses import dataclass, field

from outrider.errors import InvalidRequestError

__all__ = ["Settings"]

_AT_LEAST = {
    "max_waiting": 1,
    "max_choices": 1,
    "max_body_bytes": 1024,
    "body_seconds": 0.1,
    "request_seconds": 0.1,
    "grace_seconds": 0.0,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits and doors of a server.

    Attributes:
        model: the name that clients use.
        keys: API keys; empty lets everybody in.
        max_waiting: choices that wait or run at most; beyond it a request gets 429.
        max_choices: texts of one request at most, prompts times `n`.
        max_output_tokens: output tokens of a choice at most; None leaves it to the context.
        max_body_bytes: size of a request's body at most.
        body_seconds: how long a body may take to come.
        request_seconds: how long an answer may take.
        grace_seconds: after the signal to end, how long running answers may go on.
        cors_origins: pages of other origins that may ask; none by default.

    Raises:
        InvalidRequestError: a limit is too small to serve anything.
    """

    model: str
    keys: tuple[str, ...] = field(default=(), repr=False)
    max_waiting: int = 256
    max_choices: int = 64
    max_output_tokens: int | None = None
    max_body_bytes: int = 2**20
    body_seconds: float = 30.0
    request_seconds: float = 3600.0
    grace_seconds: float = 30.0
    cors_origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what would let nothing through."""
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if not value >= least:
                raise InvalidRequestError(f"{name} is {value!r}; give {least} or more.")
        if self.max_output_tokens is not None and self.max_output_tokens < 1:
            raise InvalidRequestError(f"max_output_tokens is {self.max_output_tokens}; give 1 or more.")
