import json
from pathlib import Path

import pytest
from bench_helpers import make_round, make_run, stats

from outrider.bench.journal import Journal, read_document
from outrider.errors import InvalidRequestError

SETTINGS = {"model": "toy", "max_tokens": 64}
DRAFTED = stats(steps=2, drafted_steps=1, drafted=3, accepted=3, emitted=5, accepts_at={0: 1}, accepted_by={"ngram": 3})
ROUNDS = [
    make_round("a", make_run(1.0), make_run(0.5, stats=DRAFTED, output=(3, 4), tokens=2), place=2, margin=0.25),
    make_round("b", make_run(1.0), make_run(0.5, output="text", stats=None, counters={"drafts": 2.0})),
]


def begin(folder: Path, **settings: object) -> Journal:
    return Journal(folder, SETTINGS | settings, lambda: {"date": "today"})


def test_what_was_measured_is_there_again(tmp_path: Path) -> None:
    first = begin(tmp_path / "run")
    for measured in ROUNDS:
        first.add_round(measured)
    first.skip("c", "too long")
    first.add_load({"kind": "off"})
    again = Journal(tmp_path / "run", SETTINGS, lambda: pytest.fail("measured anew"))
    assert again.rounds == ROUNDS
    assert again.done == {("a", 0.0), ("b", 0.0)}
    assert (again.skipped, again.loads, again.provenance) == ({"c": "too long"}, [{"kind": "off"}], {"date": "today"})
    assert (first.is_resumed, again.is_resumed) == (False, True)


def test_a_line_that_was_torn_off_is_measured_again(tmp_path: Path) -> None:
    journal = begin(tmp_path)
    for measured in ROUNDS:
        journal.add_round(measured)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    again = begin(tmp_path)
    assert again.rounds == ROUNDS[:1]
    again.add_round(ROUNDS[1])
    assert begin(tmp_path).rounds == ROUNDS


@pytest.mark.parametrize("text", [b"", b'{"format": 1, "sett'])
def test_a_run_that_wrote_nothing_begins_anew(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "journal.jsonl").write_bytes(text)
    assert not begin(tmp_path).is_resumed
    assert begin(tmp_path).is_resumed


def test_other_settings_are_refused_by_name_and_nothing_is_lost(tmp_path: Path) -> None:
    begin(tmp_path).add_round(ROUNDS[0])
    with pytest.raises(InvalidRequestError, match="max_tokens 64, but now it is 32"):
        begin(tmp_path, max_tokens=32)
    with pytest.raises(InvalidRequestError, match='rule null, but now it is "token"'):
        begin(tmp_path, rule="token")
    assert begin(tmp_path).rounds == ROUNDS[:1]


@pytest.mark.parametrize("text", ["nonsense\n", '{"format": 1}\n', "[]\n", '{"settings": {}, "provenance": {}}\n{}\n'])
def test_what_is_no_journal_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "journal.jsonl").write_text(text)
    with pytest.raises(InvalidRequestError, match="journal"):
        Journal(tmp_path, {}, dict)
    assert (tmp_path / "journal.jsonl").read_text() == text


def test_folders_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequestError, match=r"--out .*file cannot be used"):
        begin(tmp_path / "file")


def test_the_document_holds_everything_and_can_be_read_again(tmp_path: Path) -> None:
    journal = begin(tmp_path)
    for measured in ROUNDS[:1]:
        journal.add_round(measured)
    document = journal.finish(is_complete=False)
    stored, rounds = read_document(tmp_path)
    assert rounds == ROUNDS[:1]
    assert stored == json.loads(json.dumps(document))
    assert stored["settings"] == SETTINGS
    assert not stored["is_complete"]
    assert stored["summary"][0]["accepted"] == 3
    assert [path.name for path in tmp_path.glob("*.part")] == []


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"format": 9, "rounds": []}', '{"format": 1, "rounds": [{}]}', "3"])
def test_what_is_no_run_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InvalidRequestError, match="is no run of a benchmark"):
        read_document(tmp_path / "run.json")


def test_a_run_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        read_document(tmp_path)
