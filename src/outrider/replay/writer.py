"""A file of records that grows by whole lines and can be continued.

Invariant: a record is written with one call and one line end, so that whatever interrupts a run leaves whole records
and at most one broken last line, which the next run cuts off.
"""

import os
from pathlib import Path
from types import TracebackType

from outrider.errors import InvalidRequestError
from outrider.replay.records import Source, TextRecord, read_records

__all__ = ["RecordWriter"]


class RecordWriter:
    """Appends records to a file.

    Args:
        path: the file; one that exists is continued.
        source: where the new records come from.
        max_tokens: output tokens that the new records may have.
        num_top: runner-ups that they have.

    Attributes:
        done: ids that the file holds already.
        damage: what was cut off, in words; empty if nothing was.

    Raises:
        InvalidRequestError: the file cannot be written, or holds texts that were recorded otherwise.
    """

    def __init__(self, path: str | Path, source: Source, max_tokens: int, num_top: int = 0) -> None:
        self.path = Path(path)
        self.done: frozenset[str] = frozenset()
        self.damage = ""
        num_bytes = 0
        if self.path.exists():
            held = read_records(self.path)
            for record in held.records:
                _check_same(self.path, record, source, max_tokens, num_top)
            self.done = frozenset(record.id for record in held.records)
            self.damage, num_bytes = held.damage, held.num_bytes
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            raise InvalidRequestError(
                f"{self.path} cannot be written ({error.strerror}); give another --output."
            ) from error
        os.ftruncate(self._file, num_bytes)
        if num_bytes and os.pread(self._file, 1, num_bytes - 1) != b"\n":
            os.write(self._file, b"\n")

    def append(self, record: TextRecord) -> None:
        """Write one record."""
        line = (record.line() + "\n").encode()
        written = os.write(self._file, line)
        if written < len(line):  # a full disk: the rest raises
            os.write(self._file, line[written:])

    def __enter__(self) -> "RecordWriter":
        """The writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        os.close(self._file)


def _check_same(path: Path, record: TextRecord, source: Source, max_tokens: int, num_top: int) -> None:
    """Refuse to mix texts that were recorded in different ways."""
    pairs = {
        "model": (record.source.model, source.model),
        "vocabulary": (
            (record.source.vocab_size, record.source.tokenizer),
            (source.vocab_size, source.tokenizer),
        ),
        "end-of-text ids": (record.source.end_ids, source.end_ids),
        "sampling": (dict(record.source.sampling), dict(source.sampling)),
        "max_tokens": (record.max_tokens, min(max_tokens, source.context_length - len(record.prompt))),
        "runner-ups": (record.num_top, num_top),
    }
    for name, (held, wanted) in pairs.items():
        if held != wanted:
            raise InvalidRequestError(
                f"{path} holds texts of another {name} ({held} instead of {wanted}); give another --output."
            )
