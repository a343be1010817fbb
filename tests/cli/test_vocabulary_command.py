"""`outrider models vocabulary`, and a draft model that uses what it wrote."""

import json
from pathlib import Path

import pytest
from cli_helpers import refusal, run


@pytest.fixture
def texts(tmp_path: Path) -> tuple[str, str]:
    prompts, plain = tmp_path / "prompts.jsonl", tmp_path / "notes.md"
    prompts.write_text(json.dumps({"prompt": "aab", "expected": "ccc"}) + "\n")
    plain.write_text("a\n")
    return str(prompts), str(plain)


def test_a_file_is_made_from_texts_and_changes_no_text(model: str, texts: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.json"
    result = run("models", "vocabulary", model, *texts, "--size", "6", "-o", str(path))
    assert (result.exit_code, result.stdout) == (0, ""), result.output
    assert result.stderr == "6 of 260 tokens, 75.00% of the 8 in the texts.\n"
    assert [*json.loads(path.read_text())] == ["</s>", "<|user|>", "<|assistant|>", "<|system|>", "a", "c"]
    words = ("generate", "-m", model, "--max-tokens", "12", "--temperature", "1", "--seed", "3", "hello")
    drafted = run(*words, "--drafter", f"draft_model:model={model},vocabulary={path}", "--json")
    assert drafted.exit_code == 0, drafted.output
    assert json.loads(drafted.stdout)["text"] == json.loads(run(*words, "--drafter", "none", "--json").stdout)["text"]


def test_what_cannot_be_chosen_written_or_used_is_refused(model: str, texts: tuple[str, str], tmp_path: Path) -> None:
    words, path = ("models", "vocabulary", model, *texts, "-o"), str(tmp_path / "none" / "file")
    assert "size is 32768, but the vocabulary has 260 tokens" in refusal(*words, path)
    sentence = refusal(*words, path, "--size", "9")
    assert sentence == f"{path} cannot be written (No such file or directory); give another --output."
    assert "none.txt does not exist" in refusal("models", "vocabulary", model, "none.txt", "-o", path)
    drafter = f"draft_model:model={model},vocabulary={texts[1]}"
    assert f"vocabulary {texts[1]} is no JSON" in refusal("generate", "-m", model, "--drafter", drafter, "hello")
