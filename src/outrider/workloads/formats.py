"""The prompt formats that are known, each as the fields that tell it apart and a function that reads one record.

This module knows fields. It does not know files. Invariant: a format is chosen once for a file, by its first record,
and each record is held to it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.errors import InvalidRequestError
from outrider.workloads.base import PromptItem
from outrider.workloads.lines import Record

__all__ = ["FORMATS", "Format", "format_of"]

_MT_BENCH = frozenset(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
)  # Spec-Bench lists these categories one by one and counts them as one task
_ROLES = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool", "system": "system"}


class Fields:
    """The fields of one record, with errors that say where it stands."""

    def __init__(self, record: Record) -> None:
        self.place, self.number = record.place, record.number
        self._values = record.value if isinstance(record.value, dict) else {"prompt": record.value}

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def get(self, name: str) -> Any:
        """A field.

        Raises:
            InvalidRequestError: it is missing.
        """
        if name not in self:
            raise InvalidRequestError(f"{self.place} has no field {name!r}; add it or leave the record out.")
        return self._values[name]

    def text(self, name: str, *, may_be_empty: bool = False) -> str:
        """A field that holds text.

        Raises:
            InvalidRequestError: it is missing, holds something else or nothing.
        """
        value = self.get(name)
        if not isinstance(value, str) or not (value.strip() or may_be_empty):
            raise InvalidRequestError(f"{self.place} has {name}={value!r:.40}; give a text that is not empty.")
        return value

    def optional(self, name: str) -> str | None:
        """A field that may hold text."""
        return self.text(name, may_be_empty=True) if name in self else None

    def name(self, *fields: str) -> str:
        """The record's id: the first of the fields that it has, else its number."""
        return next((str(self._values[field]) for field in fields if field in self), str(self.number))

    def entries(self, name: str) -> Sequence[Any]:
        """A field that holds a list.

        Raises:
            InvalidRequestError: it is missing, holds something else or nothing.
        """
        value = self.get(name)
        if not isinstance(value, list) or not value:
            raise InvalidRequestError(f"{self.place} has {name}={value!r:.40}; give a list that is not empty.")
        return value


@dataclass(frozen=True, slots=True)
class Format:
    """One prompt format.

    Attributes:
        name: what it is called.
        fields: a file is of this format if its first record has all of them.
        read: makes an item of a record's fields.
    """

    name: str
    fields: tuple[str, ...]
    read: Callable[[Fields], PromptItem]


def _user(text: str) -> tuple[Mapping[str, str], ...]:
    return ({"role": "user", "content": text},)


def _turns(fields: Fields) -> PromptItem:
    """MT-bench and Spec-Bench; the first turn, as the others need the model's own answer."""
    category, turns = fields.text("category"), fields.entries("turns")
    if not isinstance(turns[0], str) or not turns[0].strip():
        raise InvalidRequestError(f"{fields.place} has turns={turns!r:.40}; give a list of texts.")
    task = "mt_bench" if category in _MT_BENCH else category
    return PromptItem(str(fields.get("question_id")), task, _user(turns[0]), raw=turns[0], category=category)


def _code(intent: str, code: str) -> str:
    return f"{intent}\n\n```python\n{code.rstrip()}\n```"


def _edit(fields: Fields) -> PromptItem:
    """EditEval: an instruction and the code to change."""
    code = fields.text("input")
    prompt = _code(fields.text("instruction").strip(), code)
    expected = fields.optional("output")
    return PromptItem(fields.name("task_id", "id"), "edit", _user(prompt), prompt, prediction=code, expected=expected)


def _bug(fields: Fields) -> PromptItem:
    """HumanEvalPack: a function with a bug to repair."""
    head = fields.text("declaration")
    code = head + fields.text("buggy_solution")
    prompt = _code("Fix the bug in this function and give the whole function.", code)
    expected = head + fields.text("canonical_solution")
    return PromptItem(fields.name("task_id"), "edit", _user(prompt), prompt, prediction=code, expected=expected)


def _function(fields: Fields) -> PromptItem:
    """HumanEval: the head of a function; `raw` is the head itself, for models that go on from a text."""
    head = fields.text("prompt")
    messages = _user(_code("Complete this function and give the whole function.", head))
    return PromptItem(
        fields.name("task_id"), "code", messages, raw=head, expected=fields.optional("canonical_solution")
    )


def _problem(fields: Fields) -> PromptItem:
    """MBPP: a programming task in words."""
    text = fields.text("text")
    return PromptItem(fields.name("task_id"), "code", _user(text), text, expected=fields.optional("code"))


def _question(fields: Fields) -> PromptItem:
    """GSM8K and question files with a context."""
    question = fields.text("question")
    has_context = "context" in fields
    text = f"{fields.text('context')}\n\n{question}" if has_context else question
    task = "qa" if has_context else "math_reasoning"
    return PromptItem(fields.name("id"), task, _user(text), text, expected=fields.optional("answer"))


def _conversation(fields: Fields) -> PromptItem:
    """Tool calls: the conversation up to the first call, or where none is made to the last answer."""
    turns = [_turn(fields, turn) for turn in fields.entries("conversations")]
    calls = [number for number, (author, _) in enumerate(turns) if author == "function_call"]
    answers = [number for number, (author, _) in enumerate(turns) if author == "gpt"]
    end = calls[0] if calls else answers[-1] if answers else 0
    if end == 0:
        raise InvalidRequestError(f"{fields.place} has no answer after a question; leave it out.")
    messages = tuple({"role": _ROLES[author], "content": text} for author, text in turns[:end])
    return PromptItem(
        fields.name("id"),
        "tool_call",
        messages,
        tools=_tools(fields),
        category="call" if calls else "answer",
        expected=turns[end][1],
    )


def _turn(fields: Fields, turn: Any) -> tuple[str, str]:
    author, text = (turn.get("from"), turn.get("value")) if isinstance(turn, dict) else (None, None)
    if author not in _ROLES or not isinstance(text, str):
        known = ", ".join(_ROLES)
        raise InvalidRequestError(
            f"{fields.place} has the turn {turn!r:.40}; give it a text as value, and as from one of {known}."
        )
    return author, text


def _tools(fields: Fields) -> tuple[Mapping[str, Any], ...]:
    """The functions in the shape that chat templates expect; the file has them as a text of JSON."""
    written = fields.optional("tools") or "[]"
    try:
        tools = json.loads(written)
    except ValueError as error:
        raise InvalidRequestError(f"{fields.place} has tools={written!r:.40}; give a JSON list.") from error
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise InvalidRequestError(f"{fields.place} has tools={written!r:.40}; give a JSON list of objects.")
    return tuple(tool if "function" in tool else {"type": "function", "function": tool} for tool in tools)


def _messages(fields: Fields) -> PromptItem:
    """A conversation as the OpenAI API has it."""
    messages = fields.entries("messages")
    for message in messages:
        known = isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))
        if not known:
            raise InvalidRequestError(
                f"{fields.place} has the message {message!r:.40}; give it a role and a content, both texts."
            )
    return _plain_item(fields, tuple(messages), None)


def _prompt(fields: Fields) -> PromptItem:
    """A record with a prompt, or a line of plain text."""
    text = fields.text("prompt")
    return _plain_item(fields, _user(text), text)


def _plain_item(fields: Fields, messages: tuple[Mapping[str, str], ...], raw: str | None) -> PromptItem:
    name = fields.name("id", "key", "task_id", "question_id")
    task = fields.optional("task") or "text"
    prediction, expected = fields.optional("prediction"), fields.optional("expected")
    return PromptItem(name, task, messages, raw, prediction=prediction, expected=expected)


FORMATS = (
    Format("turns", ("question_id", "category", "turns"), _turns),
    Format("bug fix", ("prompt", "declaration", "buggy_solution"), _bug),
    Format("function", ("task_id", "prompt", "entry_point"), _function),
    Format("edit", ("instruction", "input"), _edit),
    Format("tool calls", ("conversations",), _conversation),
    Format("messages", ("messages",), _messages),
    Format("prompt", ("prompt",), _prompt),
    Format("question", ("question",), _question),
    Format("problem", ("task_id", "text"), _problem),
)
"""Tried in this order: the more telling fields first."""


def format_of(record: Record) -> Format:
    """The format of a file, by its first record.

    Raises:
        InvalidRequestError: no format has its fields.
    """
    fields = Fields(record)
    for known in FORMATS:
        if all(name in fields for name in known.fields):
            return known
    has = ", ".join(record.value) if record.value else "no fields"
    raise InvalidRequestError(
        f"{record.place} has {has}; give records with one of prompt, messages, turns, instruction and input, "
        "question, or conversations."
    )
