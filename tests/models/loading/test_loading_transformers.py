"""Models that our decoder does not cover go to transformers, or are refused by name before their weights are read."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from library_models import CUTTABLE, library_model
from outrider.core.params import SamplingParams
from outrider.engine.generate import build_engine
from outrider.errors import DamagedModelError, InvalidRequestError, UnsupportedModelError
from outrider.models.decoder import Decoder
from outrider.models.loading import inspect_model, load_model, open_checkpoint
from outrider.models.transformers_rollback import ReplayTarget
from outrider.models.transformers_target import AttentionTarget
from toy_text import make_tokenizer

Make = Callable[..., Path]


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[str], Path]:
    """Write a family's small model with a tokenizer."""

    def write(name: str = "gpt2") -> Path:
        path = tmp_path / "saved"
        transformers.utils.logging.disable_progress_bar()
        library_model(name).save_pretrained(path)
        make_tokenizer(64).backend.save(str(path / "tokenizer.json"))
        (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
        return path

    return write


def change(folder: Path, **values: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))
    return folder


@pytest.mark.parametrize("name", ["gpt2", "gemma2, alternating window, soft caps", "mixtral, experts"])
def test_other_families_go_to_transformers_with_a_line_that_says_so(
    name: str, saved: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = saved(name)
    with caplog.at_level(logging.WARNING):
        loaded = load_model(path, dtype="float32", device="cpu")
    assert isinstance(loaded.target, AttentionTarget)
    assert "Transformers runs the model instead" in caplog.text
    assert loaded.target.vocab_size == loaded.config.vocab_size == 64
    assert (
        loaded.target.context_length
        == loaded.config.context_length
        == library_model(name).config.max_position_embeddings
    )
    assert loaded.defaults.stop_token_ids == (0, 2)  # the tokenizer's and the configuration's
    with pytest.raises(UnsupportedModelError, match="supported are Llama"):
        load_model(path, implementation="decoder")


def test_weights_and_text_come_out_as_they_went_in(saved: Callable[[str], Path]) -> None:
    path = saved("gemma3, window")
    engine = build_engine(str(path), dtype="float32", device="cpu", drafters=["ngram"])
    (request,) = engine.submit([5, 6, 7, 5, 6, 7, 8, 9], SamplingParams(max_tokens=12, ignore_eos=True))
    ids = torch.tensor([request.tokens])
    for _ in range(15):
        engine.step()
    expected = library_model("gemma3, window").generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert request.tokens == expected[0].tolist()


def test_a_hybrid_model_is_loaded_and_says_how_it_runs(
    saved: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        loaded = load_model(saved("lfm2"), dtype="float32", device="cpu")
    assert isinstance(loaded.target, ReplayTarget)
    assert "checkpoint and replay" in caplog.text


def test_inspect_tells_the_facts_of_other_families(saved: Callable[[str], Path]) -> None:
    path = saved("gpt2")
    info = inspect_model(path)
    stored = load_file(path / "model.safetensors")
    assert (info.family, info.num_layers, info.hidden_size, info.quantisation) == ("gpt2", 2, 32, "F32")
    assert info.num_parameters == sum(tensor.numel() for tensor in stored.values())


@pytest.mark.parametrize("make", ["folder", "gguf_file"])
def test_either_implementation_can_be_asked_for(make: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(make)("qwen2")
    if path.is_dir():
        make_tokenizer(64).backend.save(str(path / "tokenizer.json"))
    ours = load_model(path, dtype="float32", device="cpu")
    theirs = load_model(path, dtype="float32", device="cpu", implementation="transformers")
    assert (type(ours.target), type(theirs.target)) == (Decoder, AttentionTarget)
    assert ours.defaults == theirs.defaults
    assert ours.target.weight_bytes == theirs.target.weight_bytes
    prompt, texts = [3, 4, 5, 6, 3, 4, 5], []
    for loaded in (ours, theirs):
        engine = build_engine(loaded, drafters=["ngram"], policy="fixed:length=4")
        (wanted,) = engine.submit(prompt, SamplingParams(max_tokens=16, ignore_eos=True))
        for _ in range(20):
            engine.step()
        texts.append(wanted.tokens)
    assert len(texts[0]) == len(prompt) + 16
    assert texts[0] == texts[1]
    with pytest.raises(InvalidRequestError, match=r"implementation given for .*loaded"):
        build_engine(ours, implementation="decoder")


def test_a_sliding_window_is_no_limit_to_transformers(folder: Make, caplog: pytest.LogCaptureFixture) -> None:
    path = folder("mistral", sliding_window=64)
    with caplog.at_level(logging.WARNING):
        assert open_checkpoint(path).config.context_length == 64
    assert "implementation transformers has the whole" in caplog.text
    assert open_checkpoint(path, implementation="transformers").config.context_length == 128
    change(path, model_type="qwen2", architectures=["Qwen2ForCausalLM"], use_sliding_window=True)
    assert open_checkpoint(path).config.context_length == 128


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "encoder-"),
        ({"vision_config": {"hidden_size": 8}}, "multimodal model GPT2LMHeadModel"),
        ({"model_type": "nova", "architectures": ["NovaForCausalLM"]}, "NovaForCausalLM .*no causal language model"),
        (
            {"model_type": "nova", "architectures": ["NovaLM"], "auto_map": {"AutoModelForCausalLM": "nova.NovaLM"}},
            "NovaLM, whose code comes with the checkpoint; code of a checkpoint is never run",
        ),
        ({"architectures": ["GPT2ForSequenceClassification"]}, "GPT2ForSequenceClassification"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised with gptq, which cannot be read"),
        ({"quantization_config": {"quant_method": "magic"}}, "quantised with magic, which cannot be read here"),
        ({"n_embd": "many"}, "cannot be read by the installed transformers"),
    ],
    ids=["encoder-decoder", "images", "unknown", "own code", "no text", "gptq", "unknown method", "damaged"],
)
def test_what_transformers_cannot_run_exactly_is_refused_by_name(
    values: dict[str, Any], words: str, saved: Callable[[str], Path]
) -> None:
    path = change(saved("gpt2"), **values)
    (path / "model.safetensors").write_bytes(b"never read")
    for implementation in ("auto", "transformers"):
        with pytest.raises(UnsupportedModelError, match=words):
            load_model(path, implementation=implementation)


def test_pickles_and_foreign_code_are_never_opened(saved: Callable[[str], Path]) -> None:
    path = change(saved("gpt2"), auto_map={"AutoModelForCausalLM": "evil.Evil"})
    (path / "evil.py").write_text("raise SystemExit('code of a checkpoint ran')\n")
    assert isinstance(load_model(path, dtype="float32", device="cpu").target, AttentionTarget)
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(DamagedModelError, match="never loaded; convert"):
        load_model(path)


def test_incomplete_weights_are_refused(saved: Callable[[str], Path]) -> None:
    path = saved("gpt2")
    weights = load_file(path / "model.safetensors")
    gone = weights.pop("transformer.h.1.mlp.c_fc.weight")
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(DamagedModelError, match=r"lacks 1 tensor.*h\.1\.mlp\.c_fc"):
        load_model(path, dtype="float32", device="cpu")
    save_file(
        weights | {"transformer.h.1.mlp.c_fc.weight": gone[:5].clone()}, path / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises((DamagedModelError, UnsupportedModelError), match=r"another shape|cannot load"):
        load_model(path, dtype="float32", device="cpu")
    (path / "model.safetensors").write_bytes(b"\x10" * 40)
    with pytest.raises(DamagedModelError, match="truncated or damaged"):
        load_model(path)


def test_files_of_other_kinds_stay_refused(tmp_path: Path, gguf_file: Make) -> None:
    (tmp_path / "model.bin").touch()
    for implementation in ("auto", "transformers"):
        with pytest.raises(UnsupportedModelError, match="pickle"):
            load_model(tmp_path / "model.bin", implementation=implementation)
    with pytest.raises(InvalidRequestError, match="implementation is 'magic'; use auto, decoder, transformers"):
        load_model(gguf_file(), implementation="magic")


def test_a_gguf_file_whose_rotations_the_library_would_not_scale_is_refused(gguf_file: Make) -> None:
    import numpy as np

    factors = np.linspace(1, 8, 8).astype(np.float32)
    path = gguf_file("llama", tensors={"rope_freqs.weight": factors})
    with pytest.raises(UnsupportedModelError, match="rope_freqs"):
        load_model(path, implementation="transformers")


def test_all_families_of_the_tests_are_known_to_the_loader(saved: Callable[[str], Path]) -> None:
    for name in CUTTABLE:
        path = saved(name)
        assert open_checkpoint(path, implementation="transformers").config.num_layers >= 2
        (path / "model.safetensors").unlink()
