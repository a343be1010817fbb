"""An opened checkpoint: its numbers, its tensors by name, its generation defaults; nothing of the weights is read yet.

This module knows which tensors a decoder of the Llama family has and in which shapes. It knows neither file formats nor
arithmetic. Invariant: a checkpoint that passed `check_tensors` has every tensor that the decoder reads, in the right
shape, and none that the decoder would silently ignore.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from outrider.errors import DamagedModelError, UnsupportedModelError
from outrider.models.config import ModelConfig, TensorSource

if TYPE_CHECKING:
    import torch

    from outrider.models.decoder import Decoder
    from outrider.models.loading.defaults import GenerationDefaults
    from outrider.models.tokenizer import Tokenizer

__all__ = ["Checkpoint", "CheckpointSource", "check_tensors", "expected_shapes"]


class CheckpointSource(TensorSource, Protocol):
    """A tensor source that can say more about a tensor without reading it."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, rows first."""

    @property
    def quantisation(self) -> str:
        """The type that holds most of the weights, as in "BF16" or "Q4_K"."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a folder or a GGUF file gives before its weights are read.

    Attributes:
        path: the folder or file.
        config: numbers of the decoder.
        source: tensors on demand.
        defaults: sampling defaults and end-of-text tokens.
        disk_bytes: size of the weight files.
        load_tokenizer: builds the tokenizer.
    """

    path: Path
    config: ModelConfig
    source: CheckpointSource
    defaults: "GenerationDefaults"
    disk_bytes: int
    load_tokenizer: "Callable[[], Tokenizer]"

    @property
    def quantisation(self) -> str:
        """The type that holds most of the weights."""
        return self.source.quantisation

    def load_target(self, dtype: "torch.dtype", device: "torch.device", *, stored_blocks: bool) -> "Decoder":
        """Read the weights and make the target; `stored_blocks` as in `Decoder`."""
        from outrider.models.decoder import Decoder

        return Decoder(self.config, self.source, dtype=dtype, device=device, stored_blocks=stored_blocks)

    @property
    def num_parameters(self) -> int:
        """Number of weights; a tied head counts once."""
        total = 0
        for shape in expected_shapes(self.config).values():
            count = 1
            for size in shape:
                count *= size
            total += count
        return total


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a decoder with these numbers reads."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size),
        "model.norm.weight": (config.hidden_size,),
    }
    if not config.tied_head:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    for layer in range(config.num_layers):
        for name, shape in _layer_shapes(config).items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of the tensors of one layer."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    products = {
        "self_attn.q_proj": (queries, hidden, config.qkv_bias),
        "self_attn.k_proj": (keys, hidden, config.qkv_bias),
        "self_attn.v_proj": (keys, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, queries, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    for name, (outputs, inputs, has_bias) in products.items():
        shapes[f"{name}.weight"] = (outputs, inputs)
        if has_bias:
            shapes[f"{name}.bias"] = (outputs,)
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    return shapes


def check_tensors(config: ModelConfig, source: CheckpointSource, where: Path) -> None:
    """Compare the tensors of a checkpoint with those that the decoder reads.

    Raises:
        DamagedModelError: a tensor is missing or has another shape than the configuration says.
        UnsupportedModelError: there is a tensor that the decoder would ignore.
    """
    expected, present = expected_shapes(config), source.names()
    if missing := sorted(expected.keys() - present):
        raise DamagedModelError(f"{where} lacks {_listed(missing)}; fetch the model again.")
    ignorable = {name for name in present if name.endswith("rotary_emb.inv_freq")} | {"lm_head.weight"}
    if extra := sorted(present - expected.keys() - ignorable):
        raise UnsupportedModelError(
            f"{where} holds {_listed(extra)}, which a {config.family} decoder does not use; "
            "the model has parts that are not supported."
        )
    for name, shape in expected.items():
        if source.shape(name) != shape:
            raise DamagedModelError(
                f"The tensor {name} in {where} has shape {list(source.shape(name))} where the configuration "
                f"says {list(shape)}; configuration and weights do not belong together."
            )


def _listed(names: list[str]) -> str:
    """The first names in words, as in "3 tensors (a, b, ...)"."""
    noun = "the tensor" if len(names) == 1 else f"{len(names)} tensors:"
    return f"{noun} {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
