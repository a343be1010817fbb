"""Turn a Hugging Face `config.json` into a `ModelConfig`, or say by name why not.

This module knows which configurations the decoder computes exactly. It opens no weight file. Invariant: whatever in the
file changes the arithmetic is either carried over or refused; nothing is guessed.
"""

import logging
from collections.abc import Mapping
from typing import Any, Literal, cast

from outrider.errors import DamagedModelError, UnsupportedModelError
from outrider.models.config import ModelConfig
from outrider.models.loading.rope import rope_from_config
from outrider.models.loading.values import count, damaged, number, typed

__all__ = ["SUPPORTED_FAMILIES", "config_from_folder"]

logger = logging.getLogger(__name__)

Family = Literal["llama", "qwen2", "qwen3", "mistral"]

SUPPORTED_FAMILIES: dict[str, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mistral": "MistralForCausalLM",
}
_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts")
_SUPPORTED = "supported are Llama, SmolLM2, Qwen2, Qwen2.5, Qwen3 and Mistral text models"


def config_from_folder(config: Mapping[str, Any], where: str) -> ModelConfig:
    """Read the numbers of a decoder.

    Args:
        config: the parsed `config.json`.
        where: its path, for messages.

    Raises:
        UnsupportedModelError: a family or feature that the decoder does not know.
        DamagedModelError: a number is missing or cannot be meant.
    """
    family = _family(config, where)
    _refuse_features(config, where)
    return _numbers(config, family, where)


def _family(config: Mapping[str, Any], where: str) -> Family:
    """The family, after everything that is none of ours was refused."""
    kind = str(config.get("model_type", "unknown"))
    names = typed(config, "architectures", where, list, "a list of names")
    architecture = (names or [SUPPORTED_FAMILIES.get(kind, kind)])[0]
    if any(key in config for key in ("vision_config", "audio_config", "text_config")):
        raise UnsupportedModelError(f"{where} describes the multimodal model {architecture}; {_SUPPORTED}.")
    experts = [count(config, key, where, minimum=0) or 0 for key in _EXPERT_KEYS]
    if "moe" in kind or kind == "mixtral" or max(experts) > 1:
        raise UnsupportedModelError(f"{where} describes the mixture-of-experts model {architecture}; {_SUPPORTED}.")
    if SUPPORTED_FAMILIES.get(kind) != architecture:
        raise UnsupportedModelError(f"{where} describes {architecture} (model type {kind!r}); {_SUPPORTED}.")
    return cast(Family, kind)


def _refuse_features(config: Mapping[str, Any], where: str) -> None:
    """Refuse quantised weights and other activations."""
    given = [typed(config, key, where, dict, "an object") for key in ("quantization_config", "compression_config")]
    if quantisation := given[0] or given[1]:
        method = quantisation.get("quant_method", "unknown")
        raise UnsupportedModelError(
            f"{where} describes weights quantised with {method}; use the unquantised model or a GGUF file."
        )
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(f"{where} asks for the activation {activation!r}; supported is silu.")


def _numbers(config: Mapping[str, Any], family: Family, where: str) -> ModelConfig:
    """The numbers, with the defaults of each family."""
    heads, hidden = _size(config, "num_attention_heads", where), _size(config, "hidden_size", where)
    kv_heads = count(config, "num_key_value_heads", where) or heads
    if heads % kv_heads:
        raise damaged(where, "num_key_value_heads", kv_heads, f"a divisor of num_attention_heads, {heads}")
    head_dim = count(config, "head_dim", where) or hidden // heads
    if head_dim < 2 or head_dim % 2:
        raise damaged(where, "head_dim", head_dim, "an even number, as its halves are rotated")
    attention_bias = bool(config.get("attention_bias", False)) and family in ("llama", "qwen3")
    return ModelConfig(
        family=family,
        vocab_size=_size(config, "vocab_size", where),
        hidden_size=hidden,
        intermediate_size=_size(config, "intermediate_size", where),
        num_layers=_size(config, "num_hidden_layers", where),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=number(config, "rms_norm_eps", where) or 1e-6,
        context_length=_context_length(config, family, where),
        rope=rope_from_config(config, where),
        tied_head=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2" or attention_bias,
        output_bias=attention_bias,
        mlp_bias=bool(config.get("mlp_bias", False)) and family == "llama",
        qk_norm=family == "qwen3",
    )


def _size(config: Mapping[str, Any], key: str, where: str) -> int:
    """A number that must be there."""
    size = count(config, key, where)
    if size is None:
        raise DamagedModelError(f"{where} lacks the number {key}; fetch the model again.")
    return size


def _context_length(config: Mapping[str, Any], family: Family, where: str) -> int:
    """The context; Mistral's is cut to its sliding window, within which attention is the ordinary one."""
    context = _size(config, "max_position_embeddings", where)
    window = _active_window(config, family, where)
    if window is None or window >= context:
        return context
    if family != "mistral":
        raise UnsupportedModelError(
            f"{where} asks for a sliding window of {window} tokens in a context of {context}, which is not supported; "
            "use a model without it (use_sliding_window false)."
        )
    logger.warning(
        "%s has a sliding window of %d tokens: its context is cut to it; implementation transformers has the whole.",
        where,
        window,
    )
    return window


def _active_window(config: Mapping[str, Any], family: Family, where: str) -> int | None:
    """The sliding window in tokens that some layer really uses, or None."""
    if family == "llama":
        return None
    if family in ("qwen2", "qwen3") and not config.get("use_sliding_window", False):
        return None
    layers = typed(config, "layer_types", where, list, "a list of names")
    return count(config, "sliding_window", where) if layers is None or "sliding_attention" in layers else None
