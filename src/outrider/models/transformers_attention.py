"""transformers' attention interface on our own cache: a pass of many slots, trees included.

The library's models ask a registered function for their attention and another one for their masks. Ours stores the new
keys and values in the slots of the running pass and lets each row read its own path. The mask function gives the
model's rule back as it is (causal, sliding window, chunks), and we ask it about positions: so a window counts tokens of
the text, whatever rows lie between.

This module knows rows, slots and heads; it knows no weights. Invariants: a row sees its own path and nothing else;
cached rows stand at the position of their number; all keys are kept, whatever the window, so a cut is always exact.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (the usual name)

from outrider.cache.kv import KVCache
from outrider.core.tree import ancestor_mask, is_chain
from outrider.errors import UnsupportedModelError
from outrider.models.base import ForwardInputs, Segment

__all__ = ["IMPLEMENTATION", "AttentionPass", "LayerShape", "register", "running_pass", "shapes_of"]

IMPLEMENTATION = "outrider"
_SPECIAL = ("softcap", "s_aux", "position_bias")  # what plain attention does not do


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One attention layer.

    Attributes:
        number: its number among the attention layers.
        num_heads: key-value heads.
        key_dim, value_dim: numbers of a head.
    """

    number: int
    num_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True, eq=False)
class _Rule:
    """A model's own mask: which key position a query position may see."""

    sees: Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Run:
    """The rows of one slot.

    Attributes:
        segment: the slot's rows in the pass.
        queries: [m] positions of the rows.
        keys: [T] positions of the slot's rows, those of the pass included.
        path: [m, T] which of them stand on each row's path.
    """

    segment: Segment
    queries: torch.Tensor
    keys: torch.Tensor
    path: torch.Tensor


class AttentionPass:
    """One running pass.

    Args:
        inputs: the pass.
        cache: where keys and values are kept.
        shapes: the model's layers by their own number.
        device: where the model is.
    """

    def __init__(
        self, inputs: ForwardInputs, cache: KVCache, shapes: Mapping[int, LayerShape], device: torch.device
    ) -> None:
        self._cache, self._shapes, self._device = cache, shapes, device
        self._runs = [_run(segment, inputs.positions, device) for segment in inputs.segments]
        self._masks: dict[int, tuple[Any, list[tuple[int, torch.Tensor]]]] = {}

    def attend(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rule: Any,
        scaling: float | None,
        extras: Mapping[str, Any],
    ) -> torch.Tensor:
        """[1, H, N, dk] queries, [1, Hk, N, dk] keys, [1, Hk, N, dv] values -> [1, N, H, dv] what each row reads."""
        shape = self._shapes[module.layer_idx]
        self._write(shape, key, value)
        results = []
        for run, (first, mask) in zip(self._runs, self._masks_of(rule, query.dtype), strict=True):
            segment = run.segment
            held_keys, held_values = self._cache.parts(shape.number, segment.slot, len(run.keys))
            keys = held_keys[:, : shape.num_heads, first:, : shape.key_dim]
            values = held_values[:, : shape.num_heads, first:, : shape.value_dim]
            rows = query[:, :, segment.start : segment.start + segment.num_rows]
            results.append(_read(module, rows, keys, values, mask, scaling, extras))
        return torch.cat(results, 1) if len(results) > 1 else results[0]

    def _write(self, shape: LayerShape, key: torch.Tensor, value: torch.Tensor) -> None:
        held = self._cache.head_dim
        heads = (0, 0, 0, self._cache.num_kv_heads - shape.num_heads)
        keys = F.pad(key[0].transpose(0, 1), (0, held - shape.key_dim, *heads[2:]))  # [N, Hk, d]
        values = F.pad(value[0].transpose(0, 1), (0, held - shape.value_dim, *heads[2:]))
        for run in self._runs:
            segment = run.segment
            rows = slice(segment.start, segment.start + segment.num_rows)
            self._cache.write(shape.number, segment.slot, segment.num_cached, keys[rows], values[rows])

    def _masks_of(self, rule: Any, dtype: torch.dtype) -> list[tuple[int, torch.Tensor]]:
        """For each run the first key that any row sees, and [m, T - first] numbers added to the scores."""
        if id(rule) not in self._masks:
            if rule is not None and not isinstance(rule, _Rule):
                raise UnsupportedModelError("the model makes masks of its own, which the attention interface passes by")
            self._masks[id(rule)] = rule, [_mask(run, rule, dtype) for run in self._runs]
        return self._masks[id(rule)][1]


class _ShapeProbe:
    """Notes the shape of each layer instead of attending."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}

    def attend(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_others: Any
    ) -> torch.Tensor:
        """Zeros in the shape of what would be read."""
        layer = getattr(module, "layer_idx", None)
        if not isinstance(layer, int) or layer in self.shapes:
            raise UnsupportedModelError("the model's attention layers are not numbered one by one")
        self.shapes[layer] = LayerShape(len(self.shapes), key.shape[1], key.shape[3], value.shape[3])
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


_RUNNING: ContextVar["AttentionPass | _ShapeProbe | None"] = ContextVar("outrider_pass", default=None)


@contextmanager
def running_pass(attention: "AttentionPass | _ShapeProbe") -> Iterator[None]:
    """Let the models that are called inside attend in this pass."""
    token = _RUNNING.set(attention)
    try:
        yield
    finally:
        _RUNNING.reset(token)


def shapes_of(run: Callable[[], object]) -> dict[int, LayerShape]:
    """The shapes of all layers that ask for attention while `run` calls the model.

    Raises:
        UnsupportedModelError: the layers do not tell their numbers.
    """
    probe = _ShapeProbe()
    with running_pass(probe):
        run()
    return probe.shapes


def register() -> None:
    """Make our attention and masks known to the library, under the name `IMPLEMENTATION`."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(IMPLEMENTATION, _attend)
    AttentionMaskInterface.register(IMPLEMENTATION, _rule)


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    **extras: Any,
) -> tuple[torch.Tensor, None]:
    """The function that the library's models call; see `AttentionPass.attend`."""
    attention = _RUNNING.get()
    if attention is None:
        raise RuntimeError("a model with outrider's attention was called outside of a target's pass")
    return attention.attend(module, query, key, value, attention_mask, scaling, extras), None


def _rule(*, mask_function: Callable[..., torch.Tensor], **_others: Any) -> _Rule:
    """The mask that the library's models hand through: the rule itself."""
    return _Rule(mask_function)


def _run(segment: Segment, positions: np.ndarray, device: torch.device) -> _Run:
    own = positions[segment.start : segment.start + segment.num_rows]
    num_keys = segment.num_cached + segment.num_rows
    path = np.arange(num_keys) <= np.arange(segment.num_cached, num_keys)[:, None]
    if segment.parents is not None and not is_chain(segment.parents):
        first = segment.num_rows - len(segment.parents)
        path[first:, segment.num_cached + first :] = ancestor_mask(segment.parents)
    keys = np.concatenate([np.arange(segment.num_cached), own])
    queries, places, sees = (torch.from_numpy(array).to(device) for array in (own, keys, path))
    return _Run(segment, queries, places, sees)


def _mask(run: _Run, rule: _Rule | None, dtype: torch.dtype) -> tuple[int, torch.Tensor]:
    sees = run.path
    if rule is not None:
        zero = torch.zeros((), dtype=torch.int64, device=sees.device)
        sees = sees & rule.sees(zero, zero, run.queries[:, None], run.keys[None, :])
    first = int(sees.any(0).to(torch.uint8).argmax())
    sees = sees[:, first:]
    mask = torch.zeros(sees.shape, dtype=dtype, device=sees.device)
    return first, mask.masked_fill_(~sees, float("-inf"))


def _read(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scaling: float | None,
    extras: Mapping[str, Any],
) -> torch.Tensor:
    """[1, H, m, dk] queries of one slot -> [1, m, H, dv]; by the family's own function where it does more."""
    if any(extras.get(name) is not None for name in _SPECIAL) or hasattr(module, "sinks"):
        own = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
        if own is None:
            raise UnsupportedModelError(f"{type(module).__name__} has an attention of its own that cannot be called")
        result: torch.Tensor = own(
            module, query, key, value, mask[None, None], scaling=scaling, **(dict(extras) | {"dropout": 0.0})
        )[0]
        return result
    num_heads, num_rows, group = query.shape[1], query.shape[2], query.shape[1] // key.shape[1]
    by_head = query.reshape(1, key.shape[1], group * num_rows, -1)  # the heads of a group stand side by side
    read = F.scaled_dot_product_attention(by_head, key, value, attn_mask=mask.repeat(group, 1), scale=scaling)
    return read.reshape(1, num_heads, num_rows, -1).transpose(1, 2)
