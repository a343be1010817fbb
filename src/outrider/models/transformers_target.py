"""Any other causal language model of transformers as a target or draft model.

Most families ask the library's attention interface, so their passes are flat and ragged over our own cache, like those
of our decoder (`AttentionTarget`). Families that keep a state which cannot be cut back, or that attend in a way of
their own, run one slot at a time on the library's cache, by checkpoint and replay (`transformers_rollback`). Which of
the two a model gets is tried, not listed: both must agree with the model's own plain pass. This module knows neither
files nor requests. Invariant: a model that agrees with neither way is refused by name.
"""

import logging
import time
from functools import cache
from typing import Any, Protocol

import torch

from outrider.cache.base import Cache
from outrider.cache.kv import KVCache
from outrider.errors import UnsupportedModelError
from outrider.models.base import ForwardInputs, ForwardOutputs, Target
from outrider.models.checking import check_pass
from outrider.models.transformers_attention import (
    IMPLEMENTATION,
    AttentionPass,
    LayerShape,
    register,
    running_pass,
    shapes_of,
)
from outrider.models.transformers_model import CausalModel, LibraryTarget, context_length

__all__ = ["AttentionTarget", "TransformersTarget", "transformers_target"]

logger = logging.getLogger(__name__)


class TransformersTarget(Target, Protocol):
    """A target that is a model of transformers."""

    @property
    def device(self) -> torch.device:
        """Where it runs."""

    @property
    def weights(self) -> str:
        """The type of the weights."""

    @property
    def rollback(self) -> str:
        """How rejected tokens are undone: "truncate" or "replay"."""


class AttentionTarget(LibraryTarget):
    """A model whose layers all attend through the library's interface; implements `models.base.Target`.

    Args:
        model: the model, with its weights where they shall stay.
        longest: positions that the model was made for.

    Raises:
        UnsupportedModelError: the model's attention does not go through the interface.
    """

    rollback = "truncate"

    def __init__(self, model: CausalModel, longest: int) -> None:
        register()
        super().__init__(model, longest)
        model.model.set_attn_implementation(IMPLEMENTATION)
        self._shapes = self._find_shapes()
        if not self._shapes:
            raise UnsupportedModelError(f"{model.name} does not ask the attention interface")

    def make_cache(self, max_tokens: int | None = None) -> KVCache:
        """Give an empty cache for this model.

        Args:
            max_tokens: rows over all slots that the cache may hold; None for no bound but memory.
        """
        shapes: list[LayerShape] = list(self._shapes.values())
        num_heads = max(shape.num_heads for shape in shapes)
        head_dim = max(max(shape.key_dim, shape.value_dim) for shape in shapes)
        return KVCache(
            len(shapes), num_heads, head_dim, max_tokens=max_tokens, dtype=self._model.dtype, device=self.device
        )

    def forward(self, inputs: ForwardInputs, cache: Cache) -> ForwardOutputs:
        """Run one pass; writes the keys and values of all rows to the cache.

        Raises:
            CacheFullError: the rows of a segment were not reserved.
            ValueError: the inputs contradict each other or the cache.
            UnsupportedModelError: hidden layers of a model that does not show them.
        """
        started = time.perf_counter()
        if not isinstance(cache, KVCache):
            raise ValueError(f"this target needs a cache of its own make_cache, got {type(cache).__name__}")
        check_pass(inputs, cache)
        attention = AttentionPass(inputs, cache, self._shapes, self.device)
        logits = torch.empty(0, self.vocab_size, device=self.device)
        tapped = self._model.tapped(inputs.hidden_layers, inputs.stop_after)
        with torch.inference_mode(), running_pass(attention), tapped as hidden:
            logits = self._run(inputs)
        for segment in inputs.segments:
            cache.extend(segment.slot, segment.num_cached + segment.num_rows)
        taps = {layer: stream.clone() for layer, stream in hidden.items()}  # heads can be trained on clones
        if self.device.type != "cpu":
            torch.cuda.synchronize(self.device)
        return ForwardOutputs(logits.clone(), taps, time.perf_counter() - started)

    def _run(self, inputs: ForwardInputs) -> torch.Tensor:
        tokens, positions, rows = (
            torch.from_numpy(values).to(self.device, torch.int64)
            for values in (inputs.token_ids, inputs.positions, inputs.logits_rows)
        )
        return self._model.run(tokens, positions, _through_cache()(), rows)

    def _find_shapes(self) -> dict[int, LayerShape]:
        """The layers as they call the interface, and the width of the logits."""
        tokens = torch.zeros(2, dtype=torch.int64, device=self.device)

        def run() -> None:
            positions = torch.arange(2, device=self.device)
            self._vocab_size = self._model.run(tokens, positions, _through_cache()(), positions).shape[1]

        with torch.inference_mode():
            return shapes_of(run)


@cache
def _through_cache() -> type:
    """A cache of the library's kind that keeps nothing: new keys and values go through it to our attention."""
    from transformers import Cache as LibraryCache
    from transformers.cache_utils import DynamicLayer

    class ThroughCache(LibraryCache):  # type: ignore[misc]  # the library publishes no types
        def __init__(self) -> None:
            super().__init__(layer_class_to_replicate=DynamicLayer)

        def update(self, key_states: Any, value_states: Any, *_others: Any, **_named: Any) -> Any:
            return key_states, value_states

        def get_seq_length(self, *_others: Any, **_named: Any) -> int:
            return 0

        def get_query_offset(self, *_others: Any, **_named: Any) -> int:
            return 0

        def get_mask_sizes(self, query_length: int, *_others: Any, **_named: Any) -> tuple[int, int]:
            return query_length, 0

    return ThroughCache


def transformers_target(model: Any, *, longest: int | None = None) -> TransformersTarget:
    """Make a target of a model of transformers, in the way that it proves to be exact in.

    Args:
        model: one of the library's causal language models, with its weights.
        longest: positions that it was made for; None to read it from its configuration.

    Raises:
        UnsupportedModelError: no way agrees with the model's own pass.
    """
    wrapped = CausalModel(model)
    limit = context_length(wrapped.config) if longest is None else longest
    with wrapped.in_float32():
        target = None if _keeps_state(wrapped) else _attending(wrapped, limit)
        return target or _replaying(wrapped, limit)


def _attending(model: CausalModel, longest: int) -> AttentionTarget | None:
    """The target through the attention interface; None where its logits differ there or it goes another way."""
    from outrider.models.transformers_trial import agrees_in_passes

    before = model.model.config._attn_implementation
    try:
        target = AttentionTarget(model, longest)
        if agrees_in_passes(target, model):
            return target
        reason = "its results there differ from its own"
    except Exception as error:  # whatever the family does with masks or caches that are not its own
        reason = str(error) or type(error).__name__
    model.model.set_attn_implementation(before)
    logger.info("%s does not run through the attention interface (%s).", model.name, reason)
    return None


def _replaying(model: CausalModel, longest: int) -> TransformersTarget:
    """The target by checkpoint and replay.

    Raises:
        UnsupportedModelError: the family does not give its own logits step by step.
    """
    from outrider.models.transformers_rollback import ReplayTarget
    from outrider.models.transformers_trial import agrees_step_by_step, reads_chunks

    target = ReplayTarget(model, longest)
    if not agrees_step_by_step(target, model):
        raise UnsupportedModelError(
            f"{model.name} gives other logits token by token than over a whole text, or keeps its state outside of "
            "the cache, so drafts cannot be verified exactly; use another model."
        )
    target.reads_chunks = reads_chunks(target, model)
    logger.warning(
        "%s keeps a state that cannot be cut back or attends in its own way: slots run one after the other%s, and "
        "rejected tokens are undone by checkpoint and replay.",
        model.name,
        "" if target.reads_chunks else " and token by token",
    )
    return target


def _keeps_state(model: CausalModel) -> bool:
    """Whether some layer has a state instead of keys."""
    if getattr(model.model, "_is_stateful", False):
        return True
    kinds = getattr(model.config, "layer_types", None) or ()
    return any("attention" not in kind or "linear" in kind for kind in kinds)
