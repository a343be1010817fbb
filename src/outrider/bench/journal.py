"""What was measured so far, on disk after each round, and the document that a finished run leaves.

`journal.jsonl` grows by one line a round; `run.json` is written from it when a run ends, however it ends. This module
knows files; it does not know what a setting means. Invariants: what was measured is never lost or measured twice; runs
with different settings never share a folder.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from outrider.bench.load import curve
from outrider.bench.rounds import Round, round_from_json, round_to_json
from outrider.bench.summary import summarise
from outrider.errors import InvalidRequestError

__all__ = ["Journal", "read_document"]

_FORMAT = 1


class Journal:
    """The measurements of one benchmark.

    Args:
        folder: where they lie; made if it is missing.
        settings: everything that changes what is measured, ready for JSON.
        provenance: called for a new run only: on what and with what it is measured.

    Attributes:
        rounds: all rounds, those of earlier calls included.
        loads: all runs of several prompts at once, as JSON.
        skipped: prompts that were left out: prompt -> reason.
        provenance: as written when the run began.

    Raises:
        InvalidRequestError: the folder holds a run with other settings, or cannot be read or written.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], provenance: Callable[[], Mapping[str, Any]]) -> None:
        self.folder = folder
        self.settings = json.loads(json.dumps(settings))
        self.rounds: list[Round] = []
        self.loads: list[dict[str, Any]] = []
        self.skipped: dict[str, str] = {}
        self._path = folder / "journal.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.is_resumed = self._path.exists() and self._path.stat().st_size > 0 and self._read()
            if not self.is_resumed:
                self._path.write_bytes(b"")
                self.provenance: dict[str, Any] = json.loads(json.dumps(provenance()))
                self._write({"format": _FORMAT, "settings": self.settings, "provenance": self.provenance})
        except OSError as error:
            raise _unusable(folder, error) from error

    @property
    def run_path(self) -> Path:
        """Where the document lies."""
        return self.folder / "run.json"

    @property
    def done(self) -> set[tuple[str, float]]:
        """Keys of the rounds that need not be measured again."""
        return {measured.key for measured in self.rounds}

    def add_round(self, measured: Round) -> None:
        """Keep one round."""
        self._write({"round": round_to_json(measured)})
        self.rounds.append(measured)

    def add_load(self, load: Mapping[str, Any]) -> None:
        """Keep one run of several prompts at once."""
        self._write({"load": load})
        self.loads.append(dict(load))

    def skip(self, prompt: str, reason: str) -> None:
        """Keep that a prompt was left out."""
        if prompt not in self.skipped:
            self._write({"skipped": {"prompt": prompt, "reason": reason}})
            self.skipped[prompt] = reason

    def finish(self, *, is_complete: bool) -> dict[str, Any]:
        """Write `run.json`; gives its content."""
        document = {
            "format": _FORMAT,
            "is_complete": is_complete,
            "settings": self.settings,
            "provenance": self.provenance,
            "skipped": self.skipped,
            "summary": summarise(self.rounds),
            "loads": self.loads,
            "curve": curve(self.loads),
            "rounds": [round_to_json(measured) for measured in self.rounds],
        }
        part = self.run_path.with_suffix(".part")
        try:
            part.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
            part.replace(self.run_path)
        except OSError as error:
            raise _unusable(self.folder, error) from error
        return document

    def _write(self, entry: Mapping[str, Any]) -> None:
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry, ensure_ascii=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _unusable(self.folder, error) from error

    def _read(self) -> bool:
        """Take over what an earlier call measured; False where it did not even write its settings."""
        data = self._path.read_bytes()
        whole, _, torn = data.rpartition(b"\n")
        if torn:  # a process that was killed while it wrote
            os.truncate(self._path, len(data) - len(torn))
        if not whole:
            return False
        try:
            header, *entries = (json.loads(line) for line in whole.split(b"\n"))
            self._check(header["settings"])
            self.provenance = header["provenance"]
            for entry in entries:
                self._take(entry)
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidRequestError(
                f"{self._path} is no journal of a benchmark ({error!s:.80}); remove it or give --out another folder."
            ) from error
        return True

    def _check(self, other: Mapping[str, Any]) -> None:
        """Refuse to mix runs."""
        for name in dict.fromkeys([*self.settings, *other]):
            was, now = other.get(name), self.settings.get(name)
            if was != now:
                raise InvalidRequestError(
                    f"{self.folder} holds a run with {name} {_shown(was)}, but now it is {_shown(now)}; give --out "
                    "another folder, or the same settings to go on."
                )

    def _take(self, entry: Mapping[str, Any]) -> None:
        if "round" in entry:
            self.rounds.append(round_from_json(entry["round"]))
        elif "load" in entry:
            self.loads.append(entry["load"])
        else:
            self.skipped[entry["skipped"]["prompt"]] = entry["skipped"]["reason"]


def read_document(path: Path) -> tuple[dict[str, Any], list[Round]]:
    """A stored run and its rounds.

    Args:
        path: a `run.json`, or the folder that holds one.

    Raises:
        InvalidRequestError: there is none, or it is damaged.
    """
    path = path / "run.json" if path.is_dir() else path
    try:
        document = json.loads(path.read_bytes())
        if document["format"] != _FORMAT:
            raise ValueError(f"format {document['format']}")
        return document, [round_from_json(values) for values in document["rounds"]]
    except OSError as error:
        raise InvalidRequestError(
            f"{path} cannot be read ({error.strerror}); give a run.json of a benchmark."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequestError(f"{path} is no run of a benchmark ({error!s:.80}); give a run.json.") from error


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _unusable(folder: Path, error: OSError) -> InvalidRequestError:
    return InvalidRequestError(f"--out {folder} cannot be used ({error.strerror}); give a folder that can be written.")
