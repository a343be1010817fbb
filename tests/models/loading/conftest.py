"""Tiny checkpoints in both file formats, written by the tests themselves."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from outrider.models.config import ModelConfig
from outrider.models.loading.folder_config import SUPPORTED_FAMILIES, config_from_folder
from outrider.models.shapes import expected_shapes

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16


def _tiny_config(family: str = "llama", **changes: Any) -> dict[str, Any]:
    """A `config.json` of 2 layers; None removes a key."""
    values = {
        "architectures": [SUPPORTED_FAMILIES.get(family, family)],
        "model_type": family,
        "vocab_size": 272,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "eos_token_id": 2,
    }
    return {key: value for key, value in (values | changes).items() if value is not None}


def _tiny_weights(config: ModelConfig) -> dict[str, torch.Tensor]:
    """Random float32 weights for every tensor of a configuration."""
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in expected_shapes(config).items()}


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Write a model folder; further arguments change `config.json`."""

    def write(family: str = "llama", shards: int = 1, **changes: Any) -> Path:
        path = tmp_path / "model"
        path.mkdir(exist_ok=True)
        values = _tiny_config(family, **changes)
        (path / "config.json").write_text(json.dumps(values))
        plain = {k: v for k, v in values.items() if k in _tiny_config(family) or k.endswith(("bias", "embeddings"))}
        plain["model_type"], plain["architectures"] = "llama", ["LlamaForCausalLM"]
        if family in SUPPORTED_FAMILIES:
            plain["model_type"], plain["architectures"] = family, [SUPPORTED_FAMILIES[family]]
        weights = _tiny_weights(config_from_folder(plain | {"hidden_act": "silu"}, "test"))
        _write_shards(path, weights, shards)
        return path

    return write


def _write_shards(path: Path, weights: dict[str, torch.Tensor], shards: int) -> None:
    """One file, or several with an index."""
    if shards == 1:
        save_file(weights, path / "model.safetensors")
        return
    names = [f"model-{i:05}-of-{shards:05}.safetensors" for i in range(1, shards + 1)]
    place = {name: names[i % shards] for i, name in enumerate(sorted(weights))}
    for file in names:
        save_file({name: weights[name] for name in weights if place[name] == file}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str) -> str:
    """The GGUF name of a checkpoint tensor."""
    for long, short in GGUF_NAMES.items():
        name = name.replace(long, short)
    return name


def _interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """The row order that converters give q and k of `llama` files."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


@pytest.fixture
def gguf_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a GGUF file of a folder's configuration and weights, with a vocabulary of bytes."""

    def write(
        family: str = "llama",
        kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
        extra: dict[str, Any] | None = None,
        tensors: dict[str, np.ndarray] | None = None,
        **changes: Any,
    ) -> Path:
        values = _tiny_config(family, **changes)
        config = config_from_folder(values, "test")
        path = tmp_path / "tiny.gguf"
        writer = gguf.GGUFWriter(path, family)
        _write_numbers(writer, values, config)
        _write_vocabulary(writer)
        for key, value in (extra or {}).items():
            _write_value(writer, key, value)
        for name, weight in _tiny_weights(config).items():
            _write_tensor(writer, name, weight.numpy(), kind if weight.ndim == 2 else None, permute=family == "llama")
        for name, array in (tensors or {}).items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def _write_numbers(writer: gguf.GGUFWriter, values: dict[str, Any], config: ModelConfig) -> None:
    """The keys that every file has."""
    writer.add_block_count(config.num_layers)
    writer.add_context_length(values["max_position_embeddings"])
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope.theta)


def _write_vocabulary(writer: gguf.GGUFWriter) -> None:
    """256 bytes, a merge, some control tokens, padding up to 272."""
    from outrider.models.tokenizer.tokenizer import _byte_alphabet

    letters = sorted(_byte_alphabet(), key=_byte_alphabet().__getitem__)
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>"]
    unused = [f"[PAD{i}]" for i in range(257 + len(names), 272)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*letters, "ab", *names, *unused])
    writer.add_token_types([1] * 257 + [3] * len(names) + [5] * len(unused))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(259)
    writer.add_bos_token_id(257)


def _write_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """One more key of any simple type."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def _write_tensor(
    writer: gguf.GGUFWriter, name: str, weight: np.ndarray, kind: gguf.GGMLQuantizationType | None, permute: bool
) -> None:
    """One tensor, in the order and type of the file."""
    if permute and "q_proj" in name:
        weight = _interleave(weight, HEADS)
    elif permute and "k_proj" in name:
        weight = _interleave(weight, KV_HEADS)
    if kind is None or kind == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(_gguf_name(name), np.ascontiguousarray(weight))
    else:
        writer.add_tensor(_gguf_name(name), gguf.quantize(weight, kind), raw_dtype=kind)


@pytest.fixture
def tiny_config() -> Callable[..., dict[str, Any]]:
    """Give the maker of `config.json` contents."""
    return _tiny_config


@pytest.fixture
def gguf_name() -> Callable[[str], str]:
    """Give the translator of checkpoint names."""
    return _gguf_name


@pytest.fixture
def interleave() -> Callable[[np.ndarray, int], np.ndarray]:
    """Give the converters' reordering of q and k."""
    return _interleave
