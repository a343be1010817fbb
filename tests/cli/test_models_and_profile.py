import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cli_helpers import refusal, run

from outrider.models.native.library import PARTS, library
from outrider.models.toy import random_decoder


def test_list_names_the_built_in_model_before_it_is_pulled() -> None:
    entries = json.loads(run("models", "list", "--json").stdout)
    assert [(e["name"], e["origin"], e["path"], e["pulled"]) for e in entries] == [("smollm2", "built-in", None, False)]
    header, line = run("models", "list").stdout.splitlines()
    assert header.split() == ["name", "origin", "size", "path"]
    assert line.split("  ")[0] == "smollm2"
    assert line.endswith("not pulled yet")


def test_inspect_tells_the_numbers_of_the_checkpoint(model: str) -> None:
    info = json.loads(run("models", "inspect", model, "--json").stdout)
    assert info["family"] == "llama"
    assert info["context_length"] == 256
    assert info["has_chat_template"] is True
    assert info["disk_bytes"] == (Path(model) / "model.safetensors").stat().st_size
    assert info["num_parameters"] * 4 == pytest.approx(info["disk_bytes"], rel=0.05)
    lines = run("models", "inspect", model).stdout.splitlines()
    assert f"path            {model}" in lines  # a long path is not broken
    assert "chat template   yes" in lines


def test_pull_prints_where_a_model_lies(model: str) -> None:
    assert run("models", "pull", model).stdout == model + "\n"


def test_profile_gives_a_cost_for_each_width_and_context(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.engine.calibrate.read_bandwidth", lambda device: 2e9)
    words = ("profile", "-m", model, "--widths", "1,4", "--contexts", "16,32", "--repeats", "2")
    report = json.loads(run(*words, "--json").stdout)
    assert [(row["context"], row["width"]) for row in report["passes"]] == [(16, 1), (16, 4), (32, 1), (32, 4)]
    assert report["limit_seconds"] == pytest.approx(report["weight_bytes"] / 2e9)
    for row in report["passes"]:
        assert row["fraction_of_limit"] == pytest.approx(report["limit_seconds"] / row["seconds"])
        assert row["best_seconds"] <= row["seconds"]
        assert (row["ratio_to_first_width"] == 1) == (row["width"] == 1)
    lines = run(*words).stdout.splitlines()
    assert "2.0 GB/s" in lines[0]
    assert len(lines) == 3 + len(report["passes"])


@pytest.mark.skipif(library() is None, reason="the native library does not run here")
def test_profile_tells_the_parts_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = random_decoder(1, dtype=torch.bfloat16, kernels="native", hidden=64, heads=2, context_length=256)
    monkeypatch.setattr("outrider.engine.calibrate.read_bandwidth", lambda device: 2e9)
    monkeypatch.setattr("outrider.cli.loading.load", lambda *_: SimpleNamespace(target=decoder))
    words = ("profile", "--widths", "1,4", "--contexts", "16", "--repeats", "3", "--parts")
    for row in json.loads(run(*words, "--json").stdout)["passes"]:
        assert set(row["part_seconds"]) == {*PARTS, "head"}
        assert all(seconds > 0 for seconds in row["part_seconds"].values())
        assert sum(row["part_seconds"].values()) < 2 * row["seconds"]
    lines = run(*words).stdout.splitlines()
    assert [line.split("  ")[0] for line in lines[-len(PARTS) - 3 :]] == ["part", *PARTS, "head", "rest"]


def test_profile_has_no_parts_where_nobody_tells_them(model: str) -> None:
    words = ("profile", "-m", model, "--widths", "1", "--contexts", "16", "--dtype", "float32", "--parts")
    assert "only the native layers tell it" in refusal(*words)


def test_profile_refuses_passes_that_cannot_be_measured(model: str) -> None:
    assert "--widths is 'a,2'" in refusal("profile", "-m", model, "--widths", "a,2")
    assert "--contexts is '0'" in refusal("profile", "-m", model, "--contexts", "0")
    assert "context of 256" in refusal("profile", "-m", model, "--contexts", "400")
