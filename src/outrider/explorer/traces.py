"""Saved runs of the live view: whether a file is one, and what the page may show of it.

Invariant: what is not a trace of this version is refused in one sentence.
"""

import json
from collections.abc import Mapping
from typing import Any

from outrider.errors import InvalidRequestError
from outrider.explorer.race import FORMAT, Event

__all__ = ["read_trace"]

_KINDS = ("start", "round", "end")
_ROUND = ("side", "round", "tokens", "nodes", "begin", "draft", "verify", "other", "emitted", "tokens_a_pass")


def read_trace(text: bytes) -> list[Event]:
    """The events of a saved run.

    Args:
        text: the file's bytes.

    Raises:
        InvalidRequestError: it is no trace, is damaged, or is of another version.
    """
    try:
        document = json.loads(text)
        version, events = document["format"], document["events"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequestError("the file is no trace of the live view; choose one that this page saved.") from error
    if version != FORMAT:
        raise InvalidRequestError(
            f"the trace has version {version!r}, this page reads version {FORMAT}; record it anew."
        )
    if not isinstance(events, list) or not all(map(_is_event, events)):
        raise InvalidRequestError(
            "the trace is damaged: some of its events lack what they should tell; record it anew."
        )
    return events


def _is_event(event: Any) -> bool:
    if not isinstance(event, Mapping) or event.get("kind") not in _KINDS:
        return False
    return event["kind"] != "round" or all(name in event for name in _ROUND)
