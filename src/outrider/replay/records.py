"""Recorded texts: one JSON object a line, each complete in itself, so that files can be cut, joined and continued.

This module knows the format; it runs nothing. Invariant: a record that was read has token ids within its vocabulary, at
least one token of prompt and of output, and runner-ups for every output token or for none.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from outrider.core.params import is_whole_number
from outrider.errors import InvalidRequestError

__all__ = ["FORMAT", "RecordFile", "Source", "TextRecord", "read_records", "read_texts"]

FORMAT = 1
"""Number of the format; a file of another one is refused."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a text comes from.

    Attributes:
        model: name of the target.
        vocab_size: width of its logits.
        context_length: positions that it holds.
        end_ids: tokens that ended the output.
        tokenizer: fingerprint of its vocabulary.
        sampling: the sampling settings that were not left at their defaults.
        outrider: version that recorded it.
    """

    model: str
    vocab_size: int
    context_length: int
    end_ids: tuple[int, ...] = ()
    tokenizer: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    outrider: str = ""


@dataclass(frozen=True, slots=True)
class TextRecord:
    """One text that a target wrote.

    Attributes:
        id: unique in its file.
        task: what kind of text it is.
        prompt: token ids.
        output: emitted token ids, a final stop token included.
        max_tokens: output tokens that the run allowed.
        finish_reason: how it ended.
        source: where it comes from.
        seed: the request's seed; 0 where it draws nothing.
        prediction: token ids of a text that the output was expected to repeat; None without one.
        top: for each output token the target's most probable tokens there, best first; empty if not recorded.
    """

    id: str
    task: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    max_tokens: int
    finish_reason: str
    source: Source
    seed: int = 0
    prediction: tuple[int, ...] | None = None
    top: tuple[tuple[int, ...], ...] = ()

    @property
    def num_top(self) -> int:
        """Runner-ups that are known at every output token."""
        return min(map(len, self.top), default=0)

    def line(self) -> str:
        """The record as a line, without its end."""
        values = {"format": FORMAT, **asdict(self)}
        if self.prediction is None:
            del values["prediction"]
        if not self.top:
            del values["top"]
        return json.dumps(values, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class RecordFile:
    """What a file holds.

    Attributes:
        path: the file.
        records: its texts.
        num_bytes: bytes of the lines that are whole.
        damage: what is wrong with the last line, in words; empty if nothing is.
    """

    path: Path
    records: tuple[TextRecord, ...]
    num_bytes: int
    damage: str = ""


def read_records(path: str | Path) -> RecordFile:
    """Read a file of records.

    A last line that an interrupted write left behind is not used; `damage` names it.

    Raises:
        InvalidRequestError: the file cannot be read, or another line is no record.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read ({error.strerror}); give a file of records.") from error
    lines = data.split(b"\n")
    records: dict[str, TextRecord] = {}
    damage, num_bytes = "", len(data)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{path.name}, line {number}"
        try:
            record = _record(place, line)
        except InvalidRequestError:
            if number < len(lines):  # a whole line, so no write was interrupted here
                raise
            damage, num_bytes = f"{place} is cut off and left out", len(data) - len(line)
            continue
        if record.id in records:
            raise InvalidRequestError(f"{place} has the id {record.id!r} again; keep one of them.")
        records[record.id] = record
    return RecordFile(path, tuple(records.values()), num_bytes, damage)


def read_texts(paths: Sequence[str | Path]) -> tuple[list[TextRecord], list[str]]:
    """The records of several files that belong to one vocabulary.

    Returns:
        The records, and what was left out, in words.

    Raises:
        InvalidRequestError: a file is damaged or holds nothing, or the vocabularies differ.
    """
    files = [read_records(path) for path in paths]
    for file in files:
        if not file.records:
            raise InvalidRequestError(f"{file.path} holds no whole record; record some with `outrider replay record`.")
    records = [record for file in files for record in file.records]
    first = records[0].source
    for file in files:
        for record in file.records:
            check_vocabulary(f"record {record.id} of {file.path.name}", record.source, first)
    return records, [file.damage for file in files if file.damage]


def check_vocabulary(what: str, source: Source, other: Source) -> None:
    """Refuse records of another vocabulary.

    Raises:
        InvalidRequestError: the vocabularies differ.
    """
    if (source.vocab_size, source.tokenizer) != (other.vocab_size, other.tokenizer):
        raise InvalidRequestError(
            f"{what} is of another vocabulary ({source.model}, {source.vocab_size} tokens, not {other.model}, "
            f"{other.vocab_size}); use files of one vocabulary."
        )


def _record(place: str, line: bytes) -> TextRecord:
    try:
        values = json.loads(line)
    except ValueError as error:
        raise InvalidRequestError(f"{place} is not JSON ({error}); cut the line out.") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise InvalidRequestError(f"{place} is no record of format {FORMAT}; give files of `outrider replay record`.")
    try:
        return _checked(place, values)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequestError(f"{place} is no whole record ({error}); cut the line out.") from error


def _checked(place: str, values: Mapping[str, Any]) -> TextRecord:
    given = dict(values["source"])
    source = Source(**given | {"end_ids": tuple(given.get("end_ids", ()))})
    numbers = {"vocab_size": source.vocab_size, "context_length": source.context_length}
    for name, number in (numbers | {"max_tokens": values["max_tokens"]}).items():
        if not is_whole_number(number) or number < 1:
            raise InvalidRequestError(f"{place} has {name}={number!r}; record it anew.")
    texts = {name: _ids(place, name, values[name], source.vocab_size) for name in ("prompt", "output")}
    for name, ids in texts.items():
        if not ids:
            raise InvalidRequestError(f"{place} has an empty {name}; cut the line out.")
    early = next((token for token in texts["output"][:-1] if token in source.end_ids), None)
    if early is not None:
        raise InvalidRequestError(f"{place} goes on after its end-of-text token {early}; correct its end_ids.")
    prediction = values.get("prediction")
    top = tuple(_ids(place, "top", row, source.vocab_size) for row in values.get("top", ()))
    if top and len(top) != len(texts["output"]):
        raise InvalidRequestError(
            f"{place} has runner-ups for {len(top)} of {len(texts['output'])} tokens; record it anew."
        )
    return TextRecord(
        id=str(values["id"]),
        task=str(values["task"]),
        **texts,
        max_tokens=values["max_tokens"],
        finish_reason=str(values["finish_reason"]),
        source=source,
        seed=int(values.get("seed", 0)),
        prediction=None if prediction is None else _ids(place, "prediction", prediction, source.vocab_size),
        top=top,
    )


def _ids(place: str, name: str, ids: Any, vocab_size: int) -> tuple[int, ...]:
    bad = next((token for token in ids if not is_whole_number(token) or not 0 <= token < vocab_size), None)
    if bad is not None:
        raise InvalidRequestError(
            f"{place} has the token {bad!r} in its {name}; its vocabulary has ids from 0 to {vocab_size - 1}."
        )
    return tuple(ids)
