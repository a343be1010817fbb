"""From a file to a workload.

Invariant: all of a file is checked, whatever part of it is wanted.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from outrider.errors import InvalidRequestError
from outrider.workloads.base import PromptItem, Workload
from outrider.workloads.formats import Fields, format_of
from outrider.workloads.lines import read_records

__all__ = ["read_prompts"]

_GIVEN = ("prompt", "messages")


def read_prompts(
    path: str | Path,
    *,
    task: str | None = None,
    limit: int | None = None,
    per_task: int | None = None,
    predict_input: bool = False,
) -> Workload:
    """Read a file of prompts; its format is told from its first record.

    Args:
        path: plain lines, JSON lines or a JSON list, packed with gzip or not.
        task: keep the prompts of this task only.
        limit: keep this many prompts at most.
        per_task: keep this many of each task at most.
        predict_input: for tasks that change a given text, predict that the answer is that text; predictions that the
            file itself gives are always kept.

    Raises:
        InvalidRequestError: the file is not understood, names an id twice, or has no prompt of the task.
    """
    path = Path(path)
    for name, value in (("limit", limit), ("per_task", per_task)):
        if value is not None and value < 1:
            raise InvalidRequestError(f"{name} is {value}; give 1 or more, or leave it out.")
    records = list(read_records(path))
    kind = format_of(records[0])
    items = [kind.read(Fields(record)) for record in records]
    _check_ids([item.id for item in items], [record.place for record in records])
    if kind.name not in _GIVEN and not predict_input:
        items = [replace(item, prediction=None) for item in items]
    return Workload(path.name, kind.name, tuple(_chosen(items, path, task, limit, per_task)))


def _check_ids(ids: Sequence[str], places: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for name, place in zip(ids, places, strict=True):
        if name in seen:
            raise InvalidRequestError(f"{place} has the id {name!r} of {seen[name]}; give each prompt its own.")
        seen[name] = place


def _chosen(
    items: Sequence[PromptItem], path: Path, task: str | None, limit: int | None, per_task: int | None
) -> list[PromptItem]:
    wanted = [item for item in items if task is None or item.task == task]
    if not wanted:
        tasks = ", ".join(dict.fromkeys(item.task for item in items))
        raise InvalidRequestError(f"{path} has no prompt of the task {task!r}; it has {tasks}.")
    if per_task is not None:
        counts: Counter[str] = Counter()
        kept = []
        for item in wanted:
            counts[item.task] += 1
            if counts[item.task] <= per_task:
                kept.append(item)
        wanted = kept
    return wanted[:limit]
