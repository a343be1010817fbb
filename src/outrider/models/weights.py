"""Tensors of a checkpoint become the parts of a decoder, one at a time.

It knows the names of the Hugging Face checkpoints and the order of rows that the decoder wants, but no file format.
Invariant: each tensor is fetched, converted and packed before the next, and the head never exists in one piece.
"""

import torch

from outrider.models.config import ModelConfig, TensorSource
from outrider.models.layers import Layer, RMSNorm
from outrider.models.linear import Linear, make_linear
from outrider.models.rope import interleave

__all__ = ["HEAD_BLOCK", "WeightReader"]

HEAD_BLOCK = 16384  # rows of the head that are fetched and packed at once


class WeightReader:
    """Reads the parts of a decoder.

    Args:
        config: numbers of the model.
        source: its tensors.
        dtype: type of the matrices.
        device: where they live.
        packed: whether matrices are packed.
        row_group: most rows that a packed matrix is multiplied with at once; None for no limit.
    """

    def __init__(
        self,
        config: ModelConfig,
        source: TensorSource,
        *,
        dtype: torch.dtype,
        device: torch.device,
        packed: bool,
        row_group: int | None,
    ) -> None:
        self._config, self._source = config, source
        self._dtype, self._device = dtype, device
        self._packed, self._row_group = packed, row_group

    def layer(self, index: int) -> Layer:
        """Layer `index`, from 0."""
        config, name = self._config, f"model.layers.{index}"
        return Layer(
            index=index,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            attention_norm=self.norm(f"{name}.input_layernorm.weight"),
            mlp_norm=self.norm(f"{name}.post_attention_layernorm.weight"),
            qkv=self._qkv(f"{name}.self_attn"),
            output=self._linear(f"{name}.self_attn.o_proj", config.output_bias),
            gate=self._linear(f"{name}.mlp.gate_proj", config.mlp_bias),
            up=self._linear(f"{name}.mlp.up_proj", config.mlp_bias),
            down=self._linear(f"{name}.mlp.down_proj", config.mlp_bias),
            query_norm=self._head_norm(f"{name}.self_attn.q_norm.weight"),
            key_norm=self._head_norm(f"{name}.self_attn.k_norm.weight"),
        )

    def norm(self, name: str) -> RMSNorm:
        """The norm of a name."""
        return RMSNorm(self._source.tensor(name).to(self._device), self._config.norm_eps, self._dtype)

    def head(self) -> list[Linear]:
        """The output head in blocks of the vocabulary."""
        name = "model.embed_tokens.weight" if self._config.tied_head else "lm_head.weight"
        blocks = []
        for first in range(0, self._config.vocab_size, HEAD_BLOCK):
            ids = torch.arange(first, min(first + HEAD_BLOCK, self._config.vocab_size))
            blocks.append(self._make(self._source.rows(name, ids), None))
        return blocks

    def _qkv(self, name: str) -> Linear:
        weight = torch.cat([self._head_rows(f"{name}.{part}_proj.weight", part) for part in "qkv"])
        if not self._config.qkv_bias:
            return self._make(weight, None)
        bias = torch.cat([self._head_rows(f"{name}.{part}_proj.bias", part) for part in "qkv"])
        return self._make(weight, bias)

    def _head_rows(self, name: str, part: str) -> torch.Tensor:
        tensor = self._source.tensor(name).to(self._dtype)
        return tensor if part == "v" else interleave(tensor, self._config.head_dim)

    def _head_norm(self, name: str) -> RMSNorm | None:
        if not self._config.qk_norm:
            return None
        weight = interleave(self._source.tensor(name), self._config.head_dim).to(self._device)
        return RMSNorm(weight, self._config.norm_eps, self._dtype)

    def _linear(self, name: str, has_bias: bool) -> Linear:
        bias = self._source.tensor(f"{name}.bias") if has_bias else None
        return self._make(self._source.tensor(f"{name}.weight"), bias)

    def _make(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        bias = None if bias is None else bias.to(self._device, self._dtype)
        weight = weight.to(self._device, self._dtype)
        return make_linear(weight, bias, packed=self._packed, row_group=self._row_group)
