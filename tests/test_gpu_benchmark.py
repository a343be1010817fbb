"""The benchmark of CUDA devices runs on a CPU too, at a tiny shape, and what it reports can be told from a fault."""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from outrider.core.params import SamplingParams
from outrider.engine.engine import Engine
from outrider.models.toy import random_decoder

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu")


def report(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, dict[str, Any]]:
    monkeypatch.setattr("sys.argv", ["gpu.py", "--device", "cpu", "--tiny", *options])
    status = gpu.main()
    return status, json.loads(capsys.readouterr().out)


def test_every_part_runs_on_a_cpu(gpu, monkeypatch, capsys):
    status, found = report(gpu, monkeypatch, capsys)
    assert (status, found["failed"], found["left_out"]) == (0, {}, [])
    parts = found["parts"]
    laws = [check for name, checks in parts.items() if name.startswith("laws") for check in checks]
    assert len(laws) >= 15
    assert all(check["holds"] for check in laws)
    for case in parts["two devices"]:
        assert 0 < case["acceptance"] < 1
    for mode in ("as is", "invariant"):
        passes = parts[f"tiny, {mode}, passes"]
        assert len(passes["ms"]) == 8
        assert all(0 < share < 1 for share in passes["of_limit"].values())
        for kind in ("greedy texts", "texts at temperature 0.8"):
            ways = parts[f"tiny, {mode}, {kind}"]
            assert ways["scripted"]["drafted"] > ways["scripted"]["accepted"] > 0
            assert all(way["equal"] + len(way["margins"]) == way["texts"] for way in ways.values())
        assert all(counts["aten::copy_"] > 0 for counts in parts[f"tiny, {mode}, synchronisations"].values())
    closeness = parts["tiny, as is, recorded passes"]
    assert closeness["recorded"] == 8  # one request's tree has the shape of its eight rows
    for one in closeness["passes"].values():
        assert one["largest_difference"] < 0.02 * one["largest_logit"]
    ways = parts["tiny, as is, recorded texts"]
    assert all(way["equal"] + len(way["margins"]) == way["texts"] for way in ways.values())
    assert len(parts["tiny, as is, recorded times"]["passes"]) == 7
    assert "tiny, invariant, recorded passes" not in parts
    assert all(width["equal"] for width in parts["tiny, invariant, bits at every width"].values())


def test_parts_that_do_not_begin_in_time_are_named(gpu, monkeypatch, capsys):
    status, found = report(gpu, monkeypatch, capsys, "--seconds", "0")
    assert (status, found["parts"]) == (0, {})
    assert {"two devices", "laws of MATCH", "tiny, as is, loading"} < set(found["left_out"])


def test_a_part_that_fails_does_not_stop_the_others(gpu, monkeypatch, capsys):
    def broken(*_arguments: object) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(gpu, "laws", broken)
    monkeypatch.setattr(gpu, "model_parts", lambda *_parts, **_more: None)
    status, found = report(gpu, monkeypatch, capsys)
    assert status == 1
    assert found["failed"]["laws of TOKEN"] == "RuntimeError: no such kernel"
    assert "two devices" in found["parts"]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_token_of_a_text_leads_every_other_one(gpu, temperature):
    decoder = random_decoder(1)
    params = SamplingParams(temperature=temperature, max_tokens=8, seed=5)
    model = importlib.import_module("gpu_model")
    (request,) = model.generate(Engine(decoder), [PROMPT], replace(params), {}, None)
    text = request.output
    for place in (0, 3, 7):
        for other in range(decoder.vocab_size):
            request.tokens = [*PROMPT, *text]
            if other != text[place]:
                request.tokens[len(PROMPT) + place] = other
                assert model.margin(decoder, PROMPT, params, request, text) > 0


def test_random_tensors_are_the_same_at_every_call(gpu):
    config = gpu.TINY["tiny"]
    source = gpu.DeviceSource(config, gpu.torch.device("cpu"))
    for name in source.names():
        assert gpu.torch.equal(source.tensor(name), source.tensor(name))
        assert source.tensor(name).shape == source.shape(name)
    name = "model.layers.0.mlp.up_proj.weight"
    assert gpu.torch.equal(source.rows(name, [3, 1]), source.tensor(name)[[3, 1]])
