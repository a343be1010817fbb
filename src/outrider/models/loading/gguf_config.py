"""Turn the metadata of a GGUF file into a `ModelConfig`, or say by name why not.

This module knows the keys of the container and which of them change the arithmetic. It reads no weights but the rotary
factors. Invariant: the same model gives the same `ModelConfig` from GGUF and from a Hugging Face folder.
"""

import logging
import math
from typing import Any, Literal

import numpy as np

from outrider.errors import DamagedModelError, UnsupportedModelError
from outrider.models.config import ModelConfig, Rope
from outrider.models.loading.gguf_header import GgufFile
from outrider.models.loading.values import count, damaged, number

__all__ = ["config_from_gguf"]

logger = logging.getLogger(__name__)

_FAMILIES: dict[str, Literal["llama", "qwen2", "qwen3", "mistral"]] = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "mistral": "mistral",
}
_SUPPORTED = "supported are llama (SmolLM2 and Mistral too), qwen2 and qwen3"
_REFUSED = (
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.scale",
    "attention.temperature_scale",
    "attn_logit_softcapping",
    "embedding_scale",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
)
_EPSILON, _FACTOR = "attention.layer_norm_rms_epsilon", "rope.scaling.factor"
_SCALING_KNOWN = frozenset(
    {
        "attn_factor",
        "factor",
        "finetuned",
        "original_context_length",
        "type",
        "yarn_attn_factor",
        "yarn_beta_fast",
        "yarn_beta_slow",
        "yarn_ext_factor",
    }
)


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """Read the numbers of a decoder.

    Raises:
        UnsupportedModelError: a family or feature that the decoder does not know.
        DamagedModelError: a number or the embedding is missing, or a number cannot be meant.
    """
    _refuse_features(file)
    if "token_embd.weight" not in file.tensors:
        raise DamagedModelError(f"The file {file.path} lacks token_embd.weight; fetch the file again.")
    return _numbers(file)


def _refuse_features(file: GgufFile) -> None:
    """Refuse other architectures and whatever changes the arithmetic."""
    if file.architecture not in _FAMILIES:
        raise UnsupportedModelError(f"The file {file.path} holds the architecture {file.architecture!r}; {_SUPPORTED}.")
    if file.metadata.get("general.type", "model") != "model":
        raise UnsupportedModelError(
            f"The file {file.path} holds an {file.metadata['general.type']}, not a model; "
            "give the model that it is for."
        )
    if (_count(file, "expert_count", minimum=0) or 0) > 1:
        raise UnsupportedModelError(
            f"The file {file.path} holds a mixture-of-experts model; {_SUPPORTED} without experts."
        )
    for key in _REFUSED:
        if file.value(key):
            raise UnsupportedModelError(
                f"The file {file.path} sets {key} to {file.value(key)}, which is not supported."
            )
    if isinstance(file.value("attention.head_count"), list) or isinstance(file.value("feed_forward_length"), list):
        raise UnsupportedModelError(f"The file {file.path} has layers of different sizes, which is not supported.")


def _numbers(file: GgufFile) -> ModelConfig:
    """The numbers; biases, norms and a tied head follow from the tensors that are there."""
    hidden, heads = _size(file, "embedding_length"), _size(file, "attention.head_count")
    kv_heads = _count(file, "attention.head_count_kv") or heads
    if heads % kv_heads:
        raise _damaged(file, "attention.head_count_kv", kv_heads, f"a divisor of attention.head_count, {heads}")
    head_dim = _count(file, "attention.key_length") or hidden // heads
    if head_dim < 2 or head_dim % 2:
        raise _damaged(file, "attention.key_length", head_dim, "an even number, as its halves are rotated")
    return ModelConfig(
        family=_FAMILIES[file.architecture],
        vocab_size=int(file.tensors["token_embd.weight"].shape[1]),
        hidden_size=hidden,
        intermediate_size=_size(file, "feed_forward_length"),
        num_layers=_size(file, "block_count"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=_shortest(_required(file, _EPSILON, _number(file, _EPSILON))),
        context_length=_context_length(file),
        rope=_rope(file, head_dim),
        tied_head="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
    )


def _damaged(file: GgufFile, key: str, value: object, wanted: str) -> DamagedModelError:
    return damaged(str(file.path), f"{file.architecture}.{key}", value, wanted)


def _count(file: GgufFile, key: str, minimum: int = 1) -> int | None:
    return count(file.metadata, f"{file.architecture}.{key}", str(file.path), minimum=minimum)


def _number(file: GgufFile, key: str, *, zero: bool = False) -> float | None:
    return number(file.metadata, f"{file.architecture}.{key}", str(file.path), zero=zero)


def _size(file: GgufFile, key: str) -> int:
    """A whole number that must be there."""
    return int(_required(file, key, _count(file, key)))


def _required(file: GgufFile, key: str, value: float | None) -> float:
    """A number that must be there."""
    if value is None:
        raise DamagedModelError(f"The file {file.path} lacks {file.architecture}.{key}; fetch the file again.")
    return value


def _shortest(value: float) -> float:
    """The decimal that was meant: 1e-5, not the float32 9.99999974e-06."""
    return float(f"{value:.6g}")


def _context_length(file: GgufFile) -> int:
    """The context; for a sliding window (Mistral) cut to it, within which attention is the ordinary one."""
    context, window = _size(file, "context_length"), _count(file, "attention.sliding_window", minimum=0) or 0
    if not 0 < window < context:
        return context
    logger.warning("%s has a sliding window of %d tokens: the context is limited to it.", file.path, window)
    return window


def _rope(file: GgufFile, head_dim: int) -> Rope:
    """The rotary embedding."""
    theta = _number(file, "rope.freq_base") or 10000.0
    if file.value("rope.dimension_count", head_dim) != head_dim:
        raise UnsupportedModelError(
            f"The file {file.path} rotates {file.value('rope.dimension_count')} of {head_dim} numbers of each head, "
            "which is not supported."
        )
    if "rope_freqs.weight" in file.tensors:
        return _llama3(file, theta, head_dim)
    kind = file.value("rope.scaling.type", "none")
    prefix = f"{file.architecture}.rope.scaling."
    given = {key.removeprefix(prefix) for key in file.metadata if key.startswith(prefix)}
    if unknown := sorted(given - _SCALING_KNOWN):
        raise UnsupportedModelError(f"The file {file.path} sets rope.scaling.{unknown[0]}, which is not supported.")
    if kind == "none":
        scale = _number(file, "rope.scale_linear", zero=True) or 1.0  # some converters write 0 for none
        return Rope(theta) if scale == 1.0 else Rope(theta, "linear", scale)
    if kind == "linear":
        return Rope(theta, "linear", _required(file, _FACTOR, _number(file, _FACTOR)))
    if kind == "yarn":
        return _yarn(file, theta)
    raise UnsupportedModelError(
        f"The file {file.path} asks for rope scaling {kind!r}; supported are none, linear, yarn and llama3's factors."
    )


def _yarn(file: GgufFile, theta: float) -> Rope:
    """YaRN; `attn_factor` multiplies the magnitude scale that follows from the factor."""
    factor = _required(file, _FACTOR, _number(file, _FACTOR))
    magnitude = _number(file, "rope.scaling.attn_factor") or _number(file, "rope.scaling.yarn_attn_factor") or 1.0
    if file.value("rope.scaling.yarn_ext_factor", 1.0) != 1.0:
        raise UnsupportedModelError(f"The file {file.path} sets rope.scaling.yarn_ext_factor, which is not supported.")
    return Rope(
        theta,
        "yarn",
        factor,
        _count(file, "rope.scaling.original_context_length") or _size(file, "context_length"),
        beta_fast=_number(file, "rope.scaling.yarn_beta_fast") or 32.0,
        beta_slow=_number(file, "rope.scaling.yarn_beta_slow") or 1.0,
        attention_factor=None if magnitude == 1.0 else magnitude * (0.1 * math.log(factor) + 1.0),
    )


def _llama3(file: GgufFile, theta: float, head_dim: int) -> Rope:
    """The llama3 parameters whose frequency divisors are those of the file.

    The file holds the divisors [head_dim / 2] alone. The largest is the factor; the other parameters have been the same
    in every release, so they are tried and proven by recomputing the divisors.
    """
    divisors = np.array(file.tensors["rope_freqs.weight"].data, dtype=np.float64)
    given = _count(file, "rope.scaling.original_context_length") or 8192
    rope = Rope(theta, "llama3", float(divisors.max()), given, low_freq_factor=1.0, high_freq_factor=4.0)
    if divisors.shape != (head_dim // 2,) or not np.allclose(divisors, _llama3_divisors(rope, head_dim), rtol=1e-4):
        raise UnsupportedModelError(
            f"The file {file.path} holds rotary factors (rope_freqs.weight) that are not those of Llama 3; "
            "use the model's safetensors folder."
        )
    return rope


def _llama3_divisors(rope: Rope, head_dim: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """[head_dim / 2] what llama3 divides each frequency by: 1 for short waves, the factor for long ones."""
    wavelength = 2 * math.pi * rope.theta ** (np.arange(0, head_dim, 2) / head_dim)
    assert rope.original_context is not None
    rotations = rope.original_context / wavelength
    blend = (rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = np.clip(blend, 0.0, 1.0)
    return np.asarray(1.0 / ((1.0 - blend) / rope.factor + blend), dtype=np.float64)
