"""What a prompt and a set of prompts are.

Values only; nothing here reads a file. Invariant: an item has at least one message and an id that is unique in its
workload.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["PromptItem", "Workload"]


@dataclass(frozen=True, slots=True)
class PromptItem:
    """One prompt.

    Attributes:
        id: unique in its workload.
        task: what kind of text is asked for; results are grouped by it.
        messages: the conversation to answer, each message with "role" and "content".
        raw: text to go on from without a chat template; None where only the conversation makes sense.
        tools: functions that the model may call, as JSON schemas.
        category: a finer word than the task, where the file has one.
        prediction: a text that the answer is expected to repeat in large part; None without one.
        expected: the file's own answer; None without one.
    """

    id: str
    task: str
    messages: tuple[Mapping[str, str], ...]
    raw: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    category: str = ""
    prediction: str | None = None
    expected: str | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """The prompts of one file.

    Attributes:
        name: the file's name.
        kind: the format it was read as.
        items: the prompts, in the file's order.
    """

    name: str
    kind: str
    items: tuple[PromptItem, ...]

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that occur, in order of first appearance."""
        return tuple(dict.fromkeys(item.task for item in self.items))

    def __iter__(self) -> Iterator[PromptItem]:
        """The prompts, in the file's order."""
        return iter(self.items)

    def __len__(self) -> int:
        """Number of prompts."""
        return len(self.items)
