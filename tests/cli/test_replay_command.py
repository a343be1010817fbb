"""`outrider replay`: record with a tiny model, play without one."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import refusal, run

PROMPTS = ["aaaa bbbb aaaa", "one two one two one", "xyz"]
SHORT = ("--raw", "--max-tokens", "24", "--ignore-eos")


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"id": f"p{n}", "task": f"t{n % 2}", "prompt": text}) for n, text in enumerate(PROMPTS)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def records(model: str, prompts: str, tmp_path: Path) -> str:
    path = str(tmp_path / "records.jsonl")
    result = run("replay", "record", "-m", model, "--prompts", prompts, "-o", path, *SHORT)
    assert result.exit_code == 0, result.output
    assert result.stderr == "texts recorded: 3, there already: 0.\n"
    return path


def played(*words: str) -> dict[str, Any]:
    result = run("replay", *words, "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_a_replay_tells_what_generate_told(model: str, records: str) -> None:
    document = played(records, "-d", "ngram:max=3,min=1", "--length", "5", "--policy", "heuristic:costs=false")
    stats = [
        json.loads(
            run(
                *("generate", text, "-m", model, *SHORT, "--temperature", "0", "--json"),
                *("-d", "ngram:max=3,min=1", "--length", "5", "--policy", "heuristic:costs=false"),
            ).stdout
        )["stats"]
        for text in PROMPTS
    ]
    (result,) = document["results"]
    for name in ("steps", "drafted", "accepted", "rejections", "emitted", "drafted_steps", "discarded"):
        assert result["all"][name] == sum(one[name] for one in stats)
    assert result["all"]["accepted"] > 5
    assert document["records"]["texts"] == 3
    assert document["records"]["tokens"] == result["all"]["emitted"] == 72


def test_every_combination_has_a_row_for_each_task(records: str) -> None:
    result = run("replay", records, "-d", "ngram:min=1", "-d", "none", "--length", "2,6", "--cost", "1:10,4:11")
    assert result.exit_code == 0, result.output
    head, *rows = [line.split("  ") for line in result.stdout.splitlines()]
    assert head[0] == "drafters"
    assert head[-1].strip() == "predicted speed-up"
    assert len(rows) == 2 * 2 * 3  # two drafters, two lengths, two tasks and all
    assert [row[0] for row in rows] == ["ngram:min=1"] * 6 + ["none"] * 6
    assert all(0 < float(row[-1]) <= 1 for row in rows[6:])  # asking for nothing takes time, too


def test_costs_may_come_from_a_profile(records: str, tmp_path: Path) -> None:
    passes = [{"context": c, "width": w, "seconds": 0.01 * w + c / 1e6} for c in (16, 64) for w in (1, 8)]
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"passes": passes}))
    (result,) = played(records, "-d", "ngram:min=1", "--length", "6", "--cost", str(profile))["results"]
    assert 0 < result["all"]["predicted_speedup"] < 1  # a pass of eight rows costs as much as eight passes
    profile.write_text('{"passes": [{"width": 1}]}')
    assert "no report of `outrider profile --json`" in refusal("replay", records, "--cost", str(profile))


def test_tasks_and_trees_can_be_chosen(records: str) -> None:
    document = played(records, "--task", "t1", "--tree", "2x8")
    assert document["records"]["texts"] == 1
    assert document["results"][0]["tree"] == [2, 8]
    assert list(document["results"][0]["tasks"]) == ["t1"]


def test_a_recording_is_continued(model: str, prompts: str, records: str) -> None:
    path = Path(records)
    whole = path.read_text()
    path.write_text(whole[:-50])
    words = ("replay", "record", "-m", model, "--prompts", prompts, "-o", records, *SHORT)
    assert run("replay", "run", records).stderr == "records.jsonl, line 3 is cut off and left out.\n"
    result = run(*words)
    assert result.stderr.splitlines() == [
        "records.jsonl, line 3 is cut off and left out.",
        "texts recorded: 1, there already: 2.",
    ]
    assert path.read_text() == whole
    assert "another max_tokens (24 instead of 25)" in refusal(*words, "--max-tokens", "25")


def test_prompts_that_do_not_fit_are_named(model: str, tmp_path: Path) -> None:
    prompts = tmp_path / "lines.txt"
    prompts.write_text("short\n" + "long " * 100 + "\n")
    words = ("replay", "record", "-m", model, "--prompts", str(prompts), "-o", str(tmp_path / "out"), *SHORT)
    assert run(*words).stderr.splitlines() == [
        "left out, as they do not fit the context: prompts 2.",
        "texts recorded: 1, there already: 0.",
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("-d", "draft_model:model=x"), "drafter draft_model needs a model, and a replay has none"),
        (("-d", "nothing"), "drafter 'nothing' does not exist"),
        (("--length", "4,x"), "--length is '4,x'"),
        (("--length", "0"), "--length is '0'"),
        (("--policy", "fixed:length=0"), "length of policy fixed is '0'"),
        (("--tree", "4"), "tree is '4'"),
        (("--cost", "1:2,x"), "cost is '1:2,x'"),
        (("--cost", "1:-2"), "give positive seconds"),
        (("--cost", "0:2"), "needs at least one width"),
        (("--task", "t9"), "--task is 't9', but the records have only t0, t1"),
    ],
)
def test_what_cannot_be_meant_is_refused(records: str, words: tuple[str, ...], sentence: str) -> None:
    assert sentence in refusal("replay", records, *words)


def test_files_that_are_no_records_are_refused(prompts: str) -> None:
    assert "is no record of format 1" in refusal("replay", prompts)
    assert "cannot be read" in refusal("replay", "nothing.jsonl")


def test_prompt_files_are_checked_before_a_model_is_loaded(tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "x"}\n{\n')
    words = ("replay", "record", "-m", "no/such/model", "-o", "out", "--prompts")
    assert "broken.jsonl, line 2 is not JSON" in refusal(*words, str(broken))
    assert not Path("out").exists()
