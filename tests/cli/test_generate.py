import ast
import json
import re
from pathlib import Path

import pytest
from cli_helpers import run, write_model

PROMPT = "the cat and the dog and the cat and the dog"
SAMPLED = ("--temperature", "0.7", "--seed", "5", "--ignore-eos", "--max-tokens", "30")


def test_text_goes_to_stdout_and_figures_to_stderr(model: str) -> None:
    result = run("generate", PROMPT, "-m", model, *SAMPLED)
    document = json.loads(run("generate", PROMPT, "-m", model, *SAMPLED, "--json").stdout)
    assert result.exit_code == 0
    assert result.stdout == document["text"] + "\n"
    line = result.stderr.strip()
    assert line.startswith("30 tokens (cut at the limit) · ")
    assert "tokens a target pass" in line
    assert line.endswith("seed 5")


def test_figures_of_the_document_agree(model: str) -> None:
    document = json.loads(run("generate", PROMPT, "-m", model, "--ignore-eos", "--max-tokens", "30", "--json").stdout)
    stats = document["stats"]
    assert len(document["tokens"]) == stats["emitted"] == len(document["provenance"]) == 30
    assert sum(who["accepted"] for who in document["provenance"]) == stats["accepted"] > 0
    assert stats["drafted"] == stats["accepted"] + stats["rejected"] + stats["discarded"]
    assert stats["block_efficiency"] == pytest.approx(stats["emitted"] / stats["steps"])
    assert sum(stats["accepted_by"].values()) == stats["accepted"]
    assert sum(stats["drafted_by"].values()) == stats["drafted"]
    assert document["tokens_per_second"] > 0
    assert document["finish_reason"] == "length"
    assert document["comparison"] is None


def test_speculation_changes_no_token(model: str) -> None:
    one = json.loads(run("generate", PROMPT, "-m", model, *SAMPLED, "--json").stdout)
    other = json.loads(run("generate", PROMPT, "-m", model, *SAMPLED, "--json", "-d", "none").stdout)
    drafted = json.loads(
        run("generate", PROMPT, "-m", model, *SAMPLED, "--json", "-d", f"draft_model:model={model}").stdout
    )
    assert one["tokens"] == other["tokens"] == drafted["tokens"]
    assert other["stats"]["drafted"] == 0
    assert drafted["stats"]["accepted_by"] == {"draft_model": drafted["stats"]["accepted"]}


def test_a_prediction_is_followed_and_changes_no_token(model: str) -> None:
    words = ("generate", PROMPT, "-m", model, *SAMPLED, "--json")
    plain = json.loads(run(*words, "-d", "none").stdout)
    Path("expected.txt").write_text(plain["text"], encoding="utf-8")
    drafted = json.loads(run(*words, "--prediction", "expected.txt").stdout)
    assert drafted["tokens"] == plain["tokens"]
    assert set(drafted["stats"]["drafted_by"]) <= {"prediction", "ngram"}
    alone = json.loads(run(*words, "--prediction", "expected.txt", "-d", "prediction").stdout)
    assert set(alone["stats"]["drafted_by"]) == {"prediction"}
    assert json.loads(run(*words, "-d", "prediction").stdout)["stats"]["drafted"] == 0
    Path("other.txt").write_text("something else altogether", encoding="utf-8")
    assert json.loads(run(*words, "--prediction", "other.txt", "--compare").stdout)["comparison"]["is_equal"]


@pytest.mark.parametrize("drafter", ["suffix:shared=1000", "recycling:ranks=4"])
def test_free_drafters_change_no_token(model: str, drafter: str) -> None:
    words = ("generate", PROMPT, "-m", model, *SAMPLED, "--json", "-d")
    plain, drafted = (json.loads(run(*words, name).stdout) for name in ("none", drafter))
    assert drafted["tokens"] == plain["tokens"]
    assert set(drafted["stats"]["drafted_by"]) == {drafter.split(":")[0]}


def test_a_seed_is_drawn_and_reported(model: str) -> None:
    words = ("generate", PROMPT, "-m", model, "--temperature", "1", "--max-tokens", "8", "--json")
    first = json.loads(run(*words).stdout)
    again = json.loads(run(*words, "--seed", str(first["seed"])).stdout)
    assert again["tokens"] == first["tokens"]
    assert first["sampling"]["seed"] == first["seed"]


def test_compare_pairs_both_ways_of_decoding(model: str) -> None:
    words = ("generate", PROMPT, "-m", model, "--ignore-eos", "--max-tokens", "24", "--compare")
    compared = json.loads(run(*words, "--json").stdout)["comparison"]
    assert compared["is_equal"]
    assert compared["first_difference"] is None
    assert compared["speedup"] == pytest.approx(compared["plain_seconds"] / compared["speculative_seconds"])
    lines = run(*words).stderr.splitlines()
    assert lines[1].startswith("speed-up ")
    assert lines[1].endswith("the same tokens in 6 runs by turns")


def test_compare_does_not_invent_a_figure_for_one_token(model: str) -> None:
    result = run("generate", PROMPT, "-m", model, "--max-tokens", "1", "--compare")
    assert "speed-up unknown" in result.stderr


def test_compare_says_that_a_law_exact_rule_keeps_no_text(model: str) -> None:
    words = ("generate", PROMPT, "-m", model, *SAMPLED, "--rule", "token", "-d", f"draft_model:model={model}")
    line = run(*words, "--compare").stderr.splitlines()[1]
    assert "tokens that differ from output token" in line
    assert "(rule token keeps the law, not the text)" in line


@pytest.mark.parametrize("rule", ["match", "token", "traversal"])
def test_trees_are_drafted_where_they_are_asked_for(model: str, rule: str) -> None:
    words = ("generate", PROMPT, "-m", model, "--ignore-eos", "--max-tokens", "24", "--temperature", "0")
    tree = ("-d", f"draft_model:model={model}", "--tree", "2x6", "--length", "3", "--policy", "fixed", "--rule", rule)
    document = json.loads(run(*words, *tree, "--json").stdout)
    assert (document["tree"], document["rule"], document["is_exact"]) == ("2x6", rule, True)
    assert document["tokens"] == json.loads(run(*words, "-d", "none", "--json").stdout)["tokens"]
    stats = document["stats"]
    assert stats["drafted"] > 3 * stats["drafted_steps"]


def test_an_approximate_rule_says_so_wherever_its_results_stand(model: str) -> None:
    words = ("generate", PROMPT, "-m", model, *SAMPLED, "--rule", "typical")
    said = run(*words, "--stats").stderr
    assert "approximate: rule typical does not keep the model's law" in said.splitlines()[0]
    assert "typical (approximate: another law than the model's)" in said
    assert json.loads(run(*words, "--json").stdout)["is_exact"] is False
    assert "approximate" not in run("generate", PROMPT, "-m", model, *SAMPLED, "--stats").stderr


def test_stats_tell_what_each_drafter_gave(model: str) -> None:
    result = run("generate", PROMPT, "-m", model, "--ignore-eos", "--max-tokens", "24", "--stats")
    names = [line.split("  ")[0] for line in result.stderr.splitlines()[1:]]
    assert "acceptance by position" in names
    assert "from ngram" in names


def test_show_draft_marks_drafted_tokens_where_there_are_no_colours(model: str) -> None:
    words = ("generate", "aaaa", "--raw", "-m", model, "--ignore-eos", "--max-tokens", "24")
    shown = run(*words, "--show-draft")
    assert "\x1b" not in shown.output
    assert shown.stdout.count("\u2039") == shown.stdout.count("\u203a") > 0
    assert shown.stdout.replace("\u2039", "").replace("\u203a", "") == run(*words).stdout
    assert "drafted by: ngram" in shown.stderr


def test_show_draft_says_what_is_not_part_of_the_text(model: str) -> None:
    text = run("generate", PROMPT, "-m", model, *SAMPLED).stdout
    stop = re.findall(r"[!-~]{2}", text[4:])[0]
    cut = run("generate", PROMPT, "-m", model, *SAMPLED, "--stop", stop).stdout
    shown = run("generate", PROMPT, "-m", model, *SAMPLED, "--stop", stop, "--show-draft")
    assert cut == text[: text.index(stop)] + "\n"
    (said,) = re.findall(r"shown, but not part of the text: (.*)", shown.stderr)
    assert stop in ast.literal_eval(said)


@pytest.mark.parametrize("words", [("--file", "prompt.txt"), ("--file", "-"), ()])
def test_files_and_pipes_say_the_same_as_the_argument(model: str, words: tuple[str, ...]) -> None:
    said = "un café, s'il te plaît 🙂"
    with open("prompt.txt", "w", encoding="utf-8") as file:
        file.write(said + "\n")
    tail = ("-m", model, "--max-tokens", "8", "--json")
    expected = json.loads(run("generate", said, *tail).stdout)
    given = json.loads(run("generate", *words, *tail, stdin=said + "\n").stdout)
    assert given["num_prompt"] == expected["num_prompt"]
    assert given["tokens"] == expected["tokens"]


def test_raw_prompts_keep_every_character(model: str) -> None:
    given = json.loads(run("generate", "--raw", "-m", model, "--max-tokens", "1", "--json", stdin=" \n").stdout)
    assert given["num_prompt"] == 2


def test_models_without_a_template_need_raw(tmp_path_factory: pytest.TempPathFactory) -> None:
    bare = str(write_model(tmp_path_factory.mktemp("bare") / "bare", template=False))
    assert "--raw" in run("generate", "hi", "-m", bare).stderr
    assert run("generate", "hi", "-m", bare, "--raw", "--max-tokens", "2").exit_code == 0


def test_log_probabilities_of_the_document_do_not_depend_on_drafts(model: str) -> None:
    words = ("generate", PROMPT, "-m", model, *SAMPLED, "--logprobs", "3", "--json")
    drafted, plain = json.loads(run(*words).stdout), json.loads(run(*words, "-d", "none").stdout)
    assert len(drafted["logprobs"]) == len(drafted["tokens"]) == 30
    assert [entry["token"] for entry in drafted["logprobs"]] == drafted["tokens"] == plain["tokens"]
    for one, other in zip(drafted["logprobs"], plain["logprobs"], strict=True):
        assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-4)
        assert [rival["token"] for rival in one["top"]] == [rival["token"] for rival in other["top"]]
        assert len(one["top"]) == 3
        assert one["top"][0]["logprob"] >= one["top"][1]["logprob"] >= one["top"][2]["logprob"]
    assert json.loads(run("generate", PROMPT, "-m", model, *SAMPLED, "--json").stdout)["logprobs"] is None


def test_log_probabilities_stop_where_the_text_stops(model: str) -> None:
    text = run("generate", PROMPT, "-m", model, *SAMPLED).stdout
    words = ("generate", PROMPT, "-m", model, *SAMPLED, "--stop", text[10:12], "--logprobs", "0", "--json")
    document = json.loads(run(*words).stdout)
    assert document["finish_reason"] == "stop"
    assert len(document["logprobs"]) == len(document["tokens"]) < 30
    assert all(entry["top"] == [] for entry in document["logprobs"])


def test_several_texts_of_one_prompt(model: str) -> None:
    words = ("generate", PROMPT, "-m", model, *SAMPLED, "--n", "3")
    document = json.loads(run(*words, "--json").stdout)
    texts = [choice["text"] for choice in document["choices"]]
    assert len(set(texts)) == 3
    assert texts[0] == json.loads(run("generate", PROMPT, "-m", model, *SAMPLED, "--json").stdout)["text"]
    result = run(*words)
    assert result.stdout == "".join(text + "\n" for text in texts)
    assert len(result.stderr.splitlines()) == 3


def test_an_echo_begins_with_the_prompt(model: str) -> None:
    words = ("generate", PROMPT, "--raw", "-m", model, *SAMPLED)
    assert run(*words, "--echo").stdout == PROMPT + run(*words).stdout


def test_failures_of_drafters_are_shown(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from outrider.drafters.ngram import NgramDrafter

    def fail(*_: object) -> None:
        raise ValueError("broken on purpose")

    words = ("generate", PROMPT, "-m", model, *SAMPLED)
    whole = json.loads(run(*words, "--json").stdout)
    assert whole["drafter_failures"] == {}
    monkeypatch.setattr(NgramDrafter, "propose", fail)
    broken = json.loads(run(*words, "--json").stdout)
    assert broken["tokens"] == whole["tokens"]
    count = broken["drafter_failures"]["ngram"]
    assert count > 1
    assert f"{count} times" in next(
        line for line in run(*words, "--stats").stderr.splitlines() if line.startswith("ngram failed")
    )


def test_compare_tells_how_close_the_first_difference_was(model: str) -> None:
    words = ("generate", PROMPT, "-m", model, *SAMPLED, "--rule", "token", "-d", f"draft_model:model={model}")
    compared = json.loads(run(*words, "--compare", "--json").stdout)["comparison"]
    place = compared["first_difference"]
    assert compared["margin"] > 0
    plain = ("generate", PROMPT, "-m", model, *SAMPLED, "-d", "none", "--rule", "token", "--json", "--logprobs", "2")
    best = json.loads(run(*plain).stdout)["logprobs"][place]["top"]
    assert compared["margin"] == pytest.approx(best[0]["logprob"] - best[1]["logprob"], abs=1e-4)
    assert "the model's best two logits are" in run(*words, "--compare").stderr
