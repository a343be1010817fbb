"""Tensors of a checkpoint become the parts of a decoder, one at a time.

It knows the names of the Hugging Face checkpoints and the order of rows that the decoder wants, but no file format.
Invariant: each tensor is fetched, converted and packed before the next, and the head never exists in one piece.
"""

import torch

from outrider.models.config import ModelConfig, TensorSource
from outrider.models.layers import Layer, RMSNorm
from outrider.models.linear import ROW_GROUP, DenseLinear, Linear, PackedLayout, PackedLinear, invariant_layout
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
        invariant: whether a row's product may not depend on the number of rows.
    """

    def __init__(
        self,
        config: ModelConfig,
        source: TensorSource,
        *,
        dtype: torch.dtype,
        device: torch.device,
        packed: bool,
        invariant: bool,
    ) -> None:
        self._config, self._source = config, source
        self._dtype, self._device = dtype, device
        self._packed, self._invariant = packed, invariant
        self._layouts: dict[torch.Size, PackedLayout] = {}

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
            output=self._output(f"{name}.self_attn.o_proj"),
            gate_up=self._gate_up(f"{name}.mlp"),
            down=self._linear(f"{name}.mlp.down_proj", config.mlp_bias),
            query_norm=self._head_norm(f"{name}.self_attn.q_norm.weight"),
            key_norm=self._head_norm(f"{name}.self_attn.k_norm.weight"),
        )

    def norm(self, name: str) -> RMSNorm:
        """The norm of a name."""
        return RMSNorm(self._source.tensor(name).to(self._device), self._config.norm_eps, self._dtype)

    def head(self, ids: torch.Tensor | None = None) -> list[Linear]:
        """The output head in blocks; its rows of some tokens [n], or all of them."""
        name = "model.embed_tokens.weight" if self._config.tied_head else "lm_head.weight"
        wanted = torch.arange(self._config.vocab_size) if ids is None else ids.cpu()
        # few rows of a pass want logits: not worth a trial of larger groups
        return [self._make(self._source.rows(name, part), None, trial=False) for part in wanted.split(HEAD_BLOCK)]

    def _qkv(self, name: str) -> Linear:
        """q, k and v as one: q and k interleaved for the rotation, q with its groups outermost for the attention."""

        def joined(kind: str) -> torch.Tensor:
            q, k, v = (self._source.tensor(f"{name}.{part}_proj.{kind}").to(self._dtype) for part in "qkv")
            dim = self._config.head_dim
            return torch.cat([self._groups_first(interleave(q, dim)), interleave(k, dim), v])

        return self._make(joined("weight"), joined("bias") if self._config.qkv_bias else None)

    def _output(self, name: str) -> Linear:
        """The product behind the attention, its columns in the order of the query heads."""
        weight = self._groups_first(self._source.tensor(f"{name}.weight").to(self._dtype).T).T
        return self._make(weight, self._source.tensor(f"{name}.bias") if self._config.output_bias else None)

    def _groups_first(self, tensor: torch.Tensor) -> torch.Tensor:
        """[Hk * G * d, ...] -> [G * Hk * d, ...] heads ordered by their place in the group, then by key-value head."""
        heads: torch.Tensor = tensor.unflatten(0, (self._config.num_kv_heads, -1, self._config.head_dim))
        return heads.transpose(0, 1).flatten(0, 2)

    def _gate_up(self, name: str) -> Linear:
        """Gate and up as one."""

        def joined(kind: str) -> torch.Tensor:
            return torch.cat(
                [self._source.tensor(f"{name}.{part}_proj.{kind}").to(self._dtype) for part in ("gate", "up")]
            )

        return self._make(joined("weight"), joined("bias") if self._config.mlp_bias else None)

    def _head_norm(self, name: str) -> RMSNorm | None:
        if not self._config.qk_norm:
            return None
        weight = interleave(self._source.tensor(name), self._config.head_dim).to(self._device)
        return RMSNorm(weight, self._config.norm_eps, self._dtype)

    def _linear(self, name: str, has_bias: bool) -> Linear:
        bias = self._source.tensor(f"{name}.bias") if has_bias else None
        return self._make(self._source.tensor(f"{name}.weight"), bias)

    def _make(self, weight: torch.Tensor, bias: torch.Tensor | None, *, trial: bool = True) -> Linear:
        bias = None if bias is None else bias.to(self._device, self._dtype)
        weight = weight.to(self._device, self._dtype)
        row_group = ROW_GROUP if self._invariant else None
        if not self._packed:
            return DenseLinear(weight, bias, row_group)
        if not (trial and self._invariant):
            return PackedLinear(weight, bias, PackedLayout(row_group=row_group))
        if weight.shape not in self._layouts:
            self._layouts[weight.shape] = invariant_layout(weight)
        return PackedLinear(weight, bias, self._layouts[weight.shape])
