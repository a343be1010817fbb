"""`--quantize`: what is measured, kept, said and refused."""

from pathlib import Path

import pytest
import torch
from cli_helpers import refusal, run, write_model

from outrider.errors import InvalidRequestError, UnsupportedError
from outrider.models.loading import load_model
from outrider.models.loading.load import open_path
from outrider.models.loading.quantising import Loss, Quantise, decoder_logits, load_quantised
from outrider.models.native.library import library

SIZES = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 96}
needs_native = pytest.mark.skipif(library() is None, reason="the native library was not built for this machine")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
    return write_model(tmp_path / "model", **SIZES)


@needs_native
def test_losses_are_measured_once_and_bound_what_is_given(tiny, tmp_path):
    checkpoint = open_path(tiny)
    target, loss = load_quantised(checkpoint, torch.bfloat16, torch.device("cpu"), Quantise("int8"))
    assert isinstance(loss, Loss)
    assert target.weights == "blocks"
    assert 0 < loss.kl < 0.05
    assert loss.num_positions > 300
    (figures,) = (tmp_path / "home" / "quantised").iterdir()
    before = figures.stat().st_mtime_ns
    again = load_quantised(checkpoint, torch.bfloat16, torch.device("cpu"), Quantise("int8"))[1]
    assert (again, figures.stat().st_mtime_ns) == (loss, before)
    with pytest.raises(
        InvalidRequestError, match=rf"quantize is int8, but that changes model by a KL of .* above {1e-9:g}"
    ):
        load_quantised(checkpoint, torch.bfloat16, torch.device("cpu"), Quantise("int8", 1e-9))
    kept, none = load_quantised(checkpoint, torch.bfloat16, torch.device("cpu"), Quantise("auto", 1e-9))
    assert (kept.weights, none) == ("bfloat16", None)
    smallest = load_quantised(checkpoint, torch.bfloat16, torch.device("cpu"), Quantise("auto", 1e9))[1]
    assert smallest.bits == "int4"
    assert smallest.kl > loss.kl


@needs_native
def test_a_loaded_model_says_what_it_lost(tiny):
    loaded = load_model(tiny, quantize="int8", progress=False)
    assert str(loaded.loss).startswith("int8 weights: KL 0.")
    assert load_model(tiny, progress=False).loss is None
    with pytest.raises(UnsupportedError, match="quantize is int4, but the native layer does not run"):
        load_model(tiny, dtype="float32", quantize="int4", progress=False)
    with pytest.raises(UnsupportedError, match="but transformers runs"):
        load_model(tiny, implementation="transformers", quantize="int4", progress=False)


@needs_native
def test_the_command_says_what_is_lost(tiny):
    words = ("generate", "Hello", "-m", str(tiny), "--max-tokens", "3")
    result = run(*words, "--quantize", "int8", "--drafter", f"draft_model:model={tiny},quantize=int8")
    assert result.exit_code == 0, result.output
    assert "int8 weights: KL 0." in result.stderr
    assert "most probable token" in result.stderr
    unchanged = run(*words, "--quantize", "auto:max_kl=0.000000001")
    assert "stays in bfloat16" in unchanged.stderr
    assert "above 1e-09" in refusal(*words, "--quantize", "int4:max_kl=0.000000001")


@pytest.mark.parametrize(
    "command", [("generate", "x"), ("serve",), ("chat",), ("profile",), ("bench", "--prompts", "x")]
)
def test_every_command_refuses_what_is_unknown(command):
    assert "quantize is 'int3'; use none, auto, int8, int4" in refusal(*command, "--quantize", "int3")


def test_the_side_of_a_server_is_its_own():
    words = ("--endpoint", "http://127.0.0.1:9", "--quantize", "int4")
    assert "--quantize is the server's to choose" in refusal("chat", *words)


@needs_native
@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_a_reduced_head_is_loaded_with_weights_of_any_size(tiny, quantize):
    whole = load_model(tiny, quantize=quantize, progress=False)
    reduced = load_model(tiny, quantize=quantize, head_ids=[3, 5, 8], progress=False)
    assert reduced.loss == whole.loss
    assert reduced.target.weights == whole.target.weights
    assert reduced.target.weight_bytes < whole.target.weight_bytes
    (logits,) = decoder_logits(reduced.target, [[1, 2, 3]])
    assert torch.equal(logits[:, [3, 5, 8]], decoder_logits(whole.target, [[1, 2, 3]])[0][:, [3, 5, 8]])
    assert logits.isfinite().sum() == 9


def test_transformers_multiplies_by_the_whole_head(tiny):
    with pytest.raises(UnsupportedError, match=r"vocabulary .* is given, but transformers runs model"):
        load_model(tiny, implementation="transformers", head_ids=[3], progress=False)
