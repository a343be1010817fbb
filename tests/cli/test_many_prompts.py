"""`outrider generate --prompts`: the texts of a file of prompts, in its order, as if each was asked alone."""

import json
from pathlib import Path

import pytest
from cli_helpers import refusal, run

ASKED = ["hello", "one two", "hello again, this is longer than the others", "x"]
SHORT = ("--max-tokens", "12", "--seed", "3", "--temperature", "0.8")


@pytest.fixture
def prompts(model: str) -> str:  # the model's fixture goes to a folder of its own
    Path("prompts.txt").write_text("\n".join(ASKED) + "\n", encoding="utf-8")
    return "prompts.txt"


def test_texts_come_in_order_and_are_those_of_single_calls(model: str, prompts: str) -> None:
    result = run("generate", "-m", model, "--prompts", prompts, *SHORT, "--json", "--at-once", "3")
    assert result.exit_code == 0, result.output
    documents = json.loads(result.stdout)
    assert len(documents) == len(ASKED)
    for text, document in zip(ASKED, documents, strict=True):
        alone = json.loads(run("generate", text, "-m", model, *SHORT, "--json").stdout)
        assert document["tokens"] == alone["tokens"]
        assert document["error"] is None
        assert document["num_prompt"] == alone["num_prompt"]
    assert len({document["id"] for document in documents}) == len(ASKED)


def test_plain_texts_and_one_line_of_figures(model: str, prompts: str) -> None:
    result = run("generate", "-m", model, "--prompts", prompts, *SHORT)
    assert result.exit_code == 0, result.output
    assert "4 prompts · 48 tokens" in result.stderr
    wanted = [json.loads(run("generate", text, "-m", model, *SHORT, "--json").stdout)["text"] for text in ASKED]
    places = [result.stdout.find(text) for text in wanted]
    assert -1 not in places
    assert places == sorted(places)


def test_several_texts_for_each_prompt_stay_together(model: str, prompts: str) -> None:
    documents = json.loads(run("generate", "-m", model, "--prompts", prompts, *SHORT, "--n", "2", "--json").stdout)
    assert [len(document["choices"]) for document in documents] == [2] * len(ASKED)


def test_json_lines_with_ids_and_a_system_message(model: str) -> None:
    lines = [{"id": f"p{number}", "prompt": text} for number, text in enumerate(ASKED)]
    Path("p.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    words = ("generate", "-m", model, "--system", "be brief", *SHORT, "--json")
    documents = json.loads(run(*words, "--prompts", "p.jsonl").stdout)
    assert [document["id"] for document in documents] == ["p0", "p1", "p2", "p3"]
    assert documents[1]["tokens"] == json.loads(run(*words, ASKED[1]).stdout)["tokens"]


def test_a_prompt_that_does_not_fit_is_named_before_anything_runs(model: str) -> None:
    Path("long.txt").write_text("short\n" + "long " * 200 + "\n", encoding="utf-8")
    message = refusal("generate", "-m", model, "--prompts", "long.txt", *SHORT)
    assert message.startswith("prompt ")
    assert "the context of 256" in message


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("hi",), "prompts are given twice, as an argument"),
        (("--file", "x.txt"), "as --file x.txt"),
        (("--compare",), "--compare is for one prompt"),
        (("--show-draft",), "--show-draft is for one prompt"),
        (("--stats",), "--stats is for one prompt"),
        (("--memory", "much"), "memory is 'much'"),
    ],
)
def test_what_is_for_one_prompt_is_refused(prompts: str, words: tuple[str, ...], wanted: str) -> None:
    assert wanted in refusal("generate", "--prompts", prompts, *words)


def test_a_budget_that_is_too_small_is_refused_with_the_sums(model: str) -> None:
    message = refusal("generate", "hi", "-m", model, "--memory", "1KB")
    assert "memory is 0 MB" in message
    assert "target weights" in message
    assert "target cache" in message
    assert run("generate", "hi", "-m", model, "--memory", "1GB", "--max-tokens", "2").exit_code == 0
