"""Records are written whole, read whole, and continued where a run stopped."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from replay_helpers import VOCAB, prompts, target

from outrider.core.params import SamplingParams
from outrider.drafters.ngram import NgramDrafter
from outrider.engine.config import EngineConfig
from outrider.engine.engine import Engine
from outrider.engine.reference import reference_generate
from outrider.errors import InvalidRequestError
from outrider.policies.fixed import Fixed
from outrider.replay.record import Prompt, record, source_of
from outrider.replay.records import Source, TextRecord, read_records, read_texts
from outrider.replay.writer import RecordWriter

PARAMS = SamplingParams(max_tokens=20, logprobs=3)
TEXTS = prompts(7)


def new_engine() -> Engine:
    return Engine(target("table"), [NgramDrafter(3, 1)], Fixed(4), end_ids=[5], config=EngineConfig(max_running=3))


def asked() -> list[Prompt]:
    return [Prompt(f"p{number}", "even", text) for number, text in enumerate(TEXTS)]


def write(path: Path, wanted: Any = None, params: SamplingParams = PARAMS, **changes: Any) -> list[str]:
    engine = new_engine()
    source = replace(source_of("toy", engine, params), **changes)
    with RecordWriter(path, source, params.max_tokens or 0, params.logprobs or 0) as writer:
        return record(engine, asked() if wanted is None else wanted, params, writer, source)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    write(path)
    return path


def sentence(action: Any) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        action()
    return str(caught.value)


def change(path: Path, number: int, **values: Any) -> None:
    lines = path.read_text().splitlines()
    lines[number] = json.dumps(json.loads(lines[number]) | values)
    path.write_text("\n".join(lines) + "\n")


def test_records_hold_the_target_s_own_text_and_ranks(path: Path) -> None:
    file = read_records(path)
    assert file.damage == ""
    assert {r.id for r in file.records} == {p.id for p in asked()}
    model = target("table")
    for one in file.records:
        prompt = TEXTS[int(one.id[1:])]
        assert one.prompt == tuple(prompt)
        assert list(one.output) == reference_generate(model, prompt, PARAMS, end_ids=[5])
        assert one.finish_reason == ("stop" if one.output[-1] == 5 else "length")
        assert [row[0] for row in one.top] == list(one.output)  # greedy takes the first
        assert one.num_top == 3
        assert (one.max_tokens, one.source.vocab_size, one.source.end_ids) == (20, VOCAB, (5,))
    assert {one.finish_reason for one in file.records} == {"stop", "length"}


def test_a_record_is_the_same_after_a_line(path: Path) -> None:
    (first, *_) = read_records(path).records
    for one in (first, replace(first, prediction=(1, 2), top=(), seed=9)):
        path.write_text(one.line() + "\n")
        assert read_records(path).records == (one,)


def test_sampled_records_keep_their_seed(tmp_path: Path) -> None:
    params = SamplingParams(max_tokens=12, temperature=0.8, top_k=4)
    write(tmp_path / "sampled", params=params)
    for one in read_records(tmp_path / "sampled").records:
        seeded = replace(params, seed=one.seed)
        assert list(one.output) == reference_generate(target("table"), one.prompt, seeded, end_ids=[5])
        assert one.source.sampling == {"temperature": 0.8, "top_k": 4}
        assert one.top == ()


def test_a_run_that_was_interrupted_is_continued(path: Path) -> None:
    whole = {one.id: one for one in read_records(path).records}
    data = path.read_bytes()
    for size in (0, 1, len(data) // 2, len(data) - 40, len(data) - 1, len(data)):
        path.write_bytes(data[:size])
        write(path)
        assert {one.id: one for one in read_records(path).records} == whole
        assert path.read_bytes().count(b"\n") == len(whole)


def test_a_cut_off_last_line_is_named_and_the_rest_used(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-30])
    records, damage = read_texts([path])
    assert len(records) == len(TEXTS) - 1
    assert damage == ["texts.jsonl, line 7 is cut off and left out"]
    path.write_bytes(data[:-1])  # only the line end is missing
    assert len(read_texts([path])[0]) == len(TEXTS)


def test_prompts_beyond_the_context_are_left_out_and_named(tmp_path: Path) -> None:
    long = Prompt("long", "even", [1] * 300)
    assert write(tmp_path / "some", [*asked()[:2], long]) == ["long"]
    assert len(read_records(tmp_path / "some").records) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "other"}, "another model (toy instead of other)"),
        ({"vocab_size": 13}, "another vocabulary"),
        ({"tokenizer": "f00d"}, "another vocabulary"),
        ({"end_ids": (1,)}, "another end-of-text ids"),
        ({"sampling": {"top_k": 2}}, "another sampling"),
        ({"params": replace(PARAMS, max_tokens=21)}, "another max_tokens (20 instead of 21)"),
        ({"params": replace(PARAMS, logprobs=None)}, "another runner-ups (3 instead of 0)"),
    ],
)
def test_texts_that_were_recorded_otherwise_are_not_mixed(path: Path, changes: Any, words: str) -> None:
    before = path.read_bytes()
    assert words in sentence(lambda: write(path, **changes))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"output": []}, "line 2 has an empty output"),
        ({"output": [VOCAB]}, "line 2 has the token 12 in its output; its vocabulary has ids from 0 to 11"),
        ({"prompt": ["a"]}, "line 2 has the token 'a' in its prompt"),
        ({"prompt": 3}, "line 2 is no whole record"),
        ({"source": {}}, "line 2 is no whole record"),
        ({"max_tokens": 0}, "line 2 has max_tokens=0"),
        ({"top": [[1]]}, "line 2 has runner-ups for 1 of"),
        ({"output": [5, 3], "top": []}, "line 2 goes on after its end-of-text token 5"),
        ({"format": 2}, "line 2 is no record of format 1"),
        ({"id": "p0"}, "has the id 'p0' again"),
    ],
)
def test_what_is_wrong_with_a_line_is_named(path: Path, values: dict[str, Any], words: str) -> None:
    if "id" in values:
        values = {"id": json.loads(path.read_text().splitlines()[0])["id"]}
        words = f"line 2 has the id {values['id']!r} again"
    change(path, 1, **values)
    assert words in sentence(lambda: read_records(path))


def test_a_damaged_line_in_the_middle_is_refused(path: Path) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:-9], *lines[2:]]) + "\n")
    assert "texts.jsonl, line 2 is not JSON" in sentence(lambda: read_records(path))


def test_files_of_different_vocabularies_are_not_mixed(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    text = TextRecord("a", "b", (1,), (2,), 5, "length", Source("big", 999, 64))
    other.write_text(text.line() + "\n")
    words = sentence(lambda: read_texts([path, other]))
    assert "record a of other.jsonl is of another vocabulary (big, 999 tokens, not toy, 12)" in words


def test_files_without_a_record_are_refused(tmp_path: Path) -> None:
    assert "cannot be read" in sentence(lambda: read_texts([tmp_path / "nothing"]))
    (tmp_path / "empty").write_text("\n")
    assert "holds no whole record" in sentence(lambda: read_texts([tmp_path / "empty"]))
    assert "cannot be written" in sentence(lambda: write(tmp_path / "no" / "folder"))
