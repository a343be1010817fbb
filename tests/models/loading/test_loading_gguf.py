"""GGUF files: the same model as from a folder, and refusals by name."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader

from outrider.errors import DamagedModelError, ModelError, UnsupportedModelError
from outrider.models.config import Rope
from outrider.models.loading import gguf_source
from outrider.models.loading.folder import open_folder
from outrider.models.loading.gguf_checkpoint import open_gguf
from outrider.models.loading.gguf_config import config_from_gguf
from outrider.models.loading.gguf_header import open_gguf_file
from outrider.models.loading.load import open_path

File = Callable[..., Path]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_same_model_as_from_a_folder(folder: File, gguf_file: File, family: str, tied: bool) -> None:
    here = open_gguf(gguf_file(family, tie_word_embeddings=tied))
    there = open_folder(folder(family, tie_word_embeddings=tied))
    assert here.config == there.config
    assert here.source.names() == there.source.names()
    for name in there.source.names():
        assert torch.equal(here.source.tensor(name), there.source.tensor(name))
        assert here.source.shape(name) == there.source.shape(name)


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.BF16])
@pytest.mark.parametrize("chunk", [1, 300, 1 << 18])
def test_chunks_rows_and_the_plain_way_agree(
    gguf_file: File,
    kind: GGMLQuantizationType,
    chunk: int,
    monkeypatch: pytest.MonkeyPatch,
    gguf_name: Callable[[str], str],
    interleave: Callable[[np.ndarray, int], np.ndarray],
) -> None:
    monkeypatch.setattr(gguf_source, "_CHUNK_ELEMENTS", chunk)
    path = gguf_file("llama", kind)
    raw = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    source = open_gguf(path).source
    for name, heads in {"mlp.down_proj": 0, "self_attn.q_proj": 4, "self_attn.k_proj": 2}.items():
        full = f"model.layers.1.{name}.weight"
        got = source.tensor(full)
        slow = gguf.dequantize(raw[gguf_name(full)].data, kind)
        assert np.array_equal(interleave(got.numpy(), heads) if heads else got.numpy(), slow)
        assert torch.equal(source.rows(full, [7, 1, 7]), got[[7, 1, 7]])
        assert torch.equal(source.rows(full, torch.tensor([3])), got[3:4])
    assert source.quantisation == kind.name


def test_arrays_read_at_once_equal_the_package_reader(gguf_file: File) -> None:
    path = gguf_file()
    slow = {key: field.contents() for key, field in GGUFReader(path).fields.items()}
    assert open_gguf_file(path).metadata == slow


def test_every_truncation_is_refused(gguf_file: File, tmp_path: Path) -> None:
    data = gguf_file().read_bytes()
    short = tmp_path / "short.gguf"
    for keep in [0, 3, 4, 20, *range(30, len(data), len(data) // 60), len(data) - 40]:
        short.write_bytes(data[:keep])
        with pytest.raises(DamagedModelError, match=r"short\.gguf"):
            open_gguf(short)


def test_a_count_beyond_the_file_is_refused(gguf_file: File) -> None:
    path = gguf_file()
    data = bytearray(path.read_bytes())
    data[16:24] = (1 << 60).to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(DamagedModelError):
        open_gguf(path)


@pytest.mark.parametrize(
    ("family", "extra", "words"),
    [
        ("llama", {"llama.expert_count": 8}, "mixture-of-experts"),
        ("llama", {"llama.logit_scale": 2.0}, "logit_scale"),
        ("llama", {"llama.rope.dimension_count": 8}, "rotates 8 of 16"),
        ("llama", {"llama.rope.scaling.type": "longrope"}, "'longrope'"),
        ("llama", {"llama.rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier"),
        ("llama", {"split.count": 3}, "one of 3 parts"),
    ],
)
def test_unsupported_metadata_is_named(gguf_file: File, family: str, extra: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        open_gguf(gguf_file(family, extra=extra))


def test_other_architectures_are_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "gemma3")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match="'gemma3'; supported are"):
        open_gguf(tmp_path / "x.gguf")


def test_unknown_tensors_are_named(gguf_file: File) -> None:
    path = gguf_file(tensors={"blk.0.ffn_gate_exps.weight": np.zeros((2, 2), np.float32)})
    with pytest.raises(UnsupportedModelError, match="ffn_gate_exps"):
        open_gguf(path)


def test_types_that_cannot_be_dequantised_are_named(gguf_file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gguf_file("llama", GGMLQuantizationType.Q8_0)

    def refuse(*_: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr(gguf_source, "dequantize", refuse)
    with pytest.raises(UnsupportedModelError, match=r"Q8_0.*cannot be dequantised.*Q4_K_M"):
        open_gguf(path)


def test_rope_of_every_kind(gguf_file: File) -> None:
    prefix = "llama.rope.scaling."
    yarn = {f"{prefix}type": "yarn", f"{prefix}factor": 4.0, f"{prefix}original_context_length": 32}
    assert open_gguf(gguf_file(extra=yarn)).config.rope == Rope(1e4, "yarn", 4.0, 32)
    scaled = open_gguf(gguf_file(extra=yarn | {f"{prefix}attn_factor": 0.5})).config.rope
    assert scaled.attention_factor == pytest.approx(0.5 * (0.1 * math.log(4) + 1))
    linear = {f"{prefix}type": "linear", f"{prefix}factor": 2.0}
    assert open_gguf(gguf_file(extra=linear)).config.rope == Rope(1e4, "linear", 2.0)


def llama3_divisors(factor: float, theta: float, context: int) -> np.ndarray:
    """What converters write for the 8 frequencies of a head of 16, from transformers' own computation."""
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    numbers = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "max_position_embeddings": 131072}
    rope = {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": context,
    }
    config = LlamaConfig(**numbers, rope_parameters=rope)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / theta ** (torch.arange(0, 16, 2) / 16)
    divisors: np.ndarray = (plain / scaled).numpy()
    return divisors


def test_llama3_factors_are_recognised_or_refused(gguf_file: File) -> None:
    good = llama3_divisors(32.0, 500000.0, 8192)
    rope = open_gguf(gguf_file(rope_theta=500000.0, tensors={"rope_freqs.weight": good})).config.rope
    assert rope == Rope(500000.0, "llama3", 32.0, 8192)
    with pytest.raises(UnsupportedModelError, match="rope_freqs"):
        open_gguf(gguf_file(rope_theta=500000.0, tensors={"rope_freqs.weight": np.sqrt(good)}))


def test_a_sliding_window_limits_the_context(gguf_file: File, caplog: pytest.LogCaptureFixture) -> None:
    assert open_gguf(gguf_file(extra={"llama.attention.sliding_window": 64})).config.context_length == 64
    assert "sliding window of 64" in caplog.text


def test_end_of_text_and_sampling_defaults(gguf_file: File) -> None:
    extra = {"tokenizer.ggml.eom_token_id": 5, "general.sampling.temp": 0.5, "general.sampling.top_k": 40}
    defaults = open_gguf(gguf_file(extra=extra)).defaults
    assert defaults.stop_token_ids == (5, 257, 259, 260)  # <|endoftext|>, <|im_end|>, <|eot_id|> by name
    assert (defaults.temperature, defaults.top_k) == (0.5, 40)


def test_no_token_without_an_embedding(gguf_file: File) -> None:
    with pytest.raises(DamagedModelError, match="names 272 tokens but embeds 200"):
        open_gguf(gguf_file(vocab_size=200))


def test_tokenizer_skips_unused_entries(gguf_file: File) -> None:
    tokenizer = open_gguf(gguf_file()).load_tokenizer()
    assert len(tokenizer.tokens) == 261
    assert tokenizer.encode("ab <|im_end|>") == [256, 32, 259]
    assert json.dumps(tokenizer.decode([256, 271, 32])) == '"ab "'


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"general.sampling.temp": "hot"}, r"general\.sampling\.temp is 'hot'"),
        ({"tokenizer.ggml.eot_token_id": 272}, r"tokenizer\.ggml\.eot_token_id is 272"),
        ({"tokenizer.ggml.eot_token_id": "end"}, r"tokenizer\.ggml\.eot_token_id is 'end'"),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": "two"},
            r"llama\.rope\.scaling\.factor is 'two'",
        ),
        ({"llama.attention.sliding_window": "wide"}, r"llama\.attention\.sliding_window is 'wide'"),
    ],
)
def test_damaged_metadata_is_named_with_its_value(gguf_file: File, extra: dict[str, Any], words: str) -> None:
    with pytest.raises(DamagedModelError, match=rf"tiny\.gguf: {words}; .*fetch the file again"):
        open_gguf(gguf_file(extra=extra)).load_tokenizer()


@pytest.mark.parametrize("key", ["embedding_length", "attention.head_count", "block_count", "context_length"])
@pytest.mark.parametrize("value", [0, -3, "abc"])
def test_a_damaged_size_is_named(gguf_file: File, key: str, value: Any) -> None:
    file = open_gguf_file(gguf_file())
    file.metadata[f"llama.{key}"] = value
    with pytest.raises(DamagedModelError, match=rf"llama\.{key} is {value!r}; "):
        config_from_gguf(file)


def test_the_suffix_may_be_in_capitals(gguf_file: File, tmp_path: Path) -> None:
    path = gguf_file().rename(tmp_path / "TINY.GGUF")
    assert open_path(path).config.num_layers == 2


def test_a_file_that_may_not_be_read_is_no_damage(gguf_file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("outrider.models.loading.gguf_header._Reader", refuse)
    with pytest.raises(ModelError, match=r"tiny\.gguf cannot be read \(Permission denied\); check its permissions\.$"):
        open_path(gguf_file())
