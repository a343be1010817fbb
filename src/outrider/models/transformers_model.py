"""One causal language model of transformers, called the way that our targets need it.

This module knows how the library's models differ in their arguments and where their layers stand. It knows neither our
caches nor segments. Invariant: what comes back is float32 logits of the wanted rows only, and the streams that were
asked for as the layers gave them, before any final norm.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from outrider.errors import UnsupportedModelError

__all__ = ["CausalModel", "LibraryTarget", "context_length"]

_LARGEST_COPY = 4 << 30
_UNBOUNDED = 1 << 20  # models without a table of positions name no limit
_CACHE_NAMES = ("cache", "past_key_values", "cache_params")  # the library renamed it more than once
_LENGTH_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
_CHANGING_ROPES = frozenset({"dynamic", "longrope"})

Hidden = dict[int, torch.Tensor]


class _StopPass(Exception):  # noqa: N818 - no error: the way out of a pass that is to end early
    """Leaves a pass behind a layer."""


class CausalModel:
    """A model with one way to call it.

    Args:
        model: one of the library's causal language models.

    Raises:
        UnsupportedModelError: the model takes no cache.
    """

    def __init__(self, model: Any) -> None:
        self.model = model.eval().requires_grad_(False)
        self.config = model.config.get_text_config(decoder=True)
        self.family = str(getattr(model.config, "model_type", type(model).__name__))
        self._arguments = inspect.signature(model.forward).parameters
        names = [name for name in _CACHE_NAMES if name in self._arguments]
        if not names:
            raise UnsupportedModelError(
                f"{type(model).__name__} takes no cache, so it cannot be decoded step by step; use another model."
            )
        self._cache_name = names[0]
        self._layers: Sequence[nn.Module] | None = _find_layers(model, getattr(self.config, "num_hidden_layers", 0))

    @property
    def name(self) -> str:
        """Name of the model's class, for messages."""
        return type(self.model).__name__

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Type of most of its weights."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def weight_bytes(self) -> int:
        """Bytes of the matrices that a pass reads, each once; an embedding counts only where it is the head too."""
        embedding, head = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        tied = head is not None and embedding is not None and head.weight is embedding.weight
        skipped = set() if tied or embedding is None else {id(embedding.weight)}
        matrices = {id(p): p.nbytes for p in self.model.parameters() if p.ndim > 1 and id(p) not in skipped}
        return sum(matrices.values())

    def run(
        self, token_ids: torch.Tensor, positions: torch.Tensor | None, cache: Any, rows: torch.Tensor
    ) -> torch.Tensor:
        """One pass over a row of tokens.

        Args:
            token_ids: [N] tokens.
            positions: [N] their places in their texts; None lets the model count from its cache.
            cache: the library's cache; None for none.
            rows: [M] rows whose logits are wanted.

        Returns:
            [M, V] float32 logits.
        """
        arguments: dict[str, Any] = {"input_ids": token_ids[None], "use_cache": cache is not None}
        arguments[self._cache_name] = cache
        if positions is not None and "position_ids" in self._arguments:
            arguments["position_ids"] = positions[None]
        if "logits_to_keep" in self._arguments:
            logits = self.model(**arguments, logits_to_keep=rows).logits[0]
        else:
            logits = self.model(**arguments).logits[0].index_select(0, rows)
        return logits.float()  # type: ignore[no-any-return]

    @contextmanager
    def in_float32(self) -> Iterator[None]:
        """Compute in float32 meanwhile, so that a trial is not blurred by rounding; the weights come back as they were.

        Models of more than 4 GiB and quantised ones stay as they are: a second copy might not fit.
        """
        tensors = [*self.model.parameters(), *self.model.buffers()]
        halves = [tensor for tensor in tensors if tensor.dtype in (torch.bfloat16, torch.float16)]
        if sum(tensor.nbytes for tensor in halves) > _LARGEST_COPY or getattr(self.model, "is_quantized", False):
            halves = []
        kept = [tensor.data for tensor in halves]
        try:
            for tensor in halves:
                tensor.data = tensor.data.float()
            yield
        finally:
            for tensor, data in zip(halves, kept, strict=True):
                tensor.data = data

    @contextmanager
    def tapped(self, wanted: Sequence[int], stop_after: int | None = None) -> Iterator[Hidden]:
        """Note the wanted streams of the passes inside, and leave a pass behind layer `stop_after`.

        Args:
            wanted: 0 is the embedding, i the output of layer i.
            stop_after: layers to run; None for all.

        Raises:
            UnsupportedModelError: the model's layers cannot be found.
        """
        hidden: Hidden = {}
        handles = self._hooks(wanted, stop_after, hidden) if wanted or stop_after is not None else []
        try:
            yield hidden
        except _StopPass:
            pass
        finally:
            for handle in handles:
                handle.remove()

    def _hooks(self, wanted: Sequence[int], stop_after: int | None, hidden: Hidden) -> list[Any]:
        layers = self._layers
        if layers is None or max([*wanted, stop_after or 0]) > len(layers):
            raise UnsupportedModelError(
                f"{self.name} does not show the layers {list(wanted)}; use a drafter that needs no hidden states."
            )

        def note(layer: int, stream: torch.Tensor) -> None:
            if layer in wanted:
                hidden[layer] = stream[0].clone()
            if layer == stop_after:
                raise _StopPass

        def before(_module: nn.Module, arguments: Any, named: dict[str, Any]) -> None:
            note(0, arguments[0] if arguments else named["hidden_states"])

        handles = [layers[0].register_forward_pre_hook(before, with_kwargs=True)]
        for number, layer in enumerate(layers, 1):
            if number in wanted or number == stop_after:
                handles.append(layer.register_forward_hook(_after(number, note)))
        return handles


def _after(number: int, note: Any) -> Any:
    """A hook that notes a layer's output, which is a tensor or begins with one."""

    def hook(_module: nn.Module, _arguments: Any, output: Any) -> None:
        note(number, output if isinstance(output, torch.Tensor) else output[0])

    return hook


def _find_layers(model: Any, num_layers: int) -> "Sequence[nn.Module] | None":
    """The list of the decoder's layers: the first list of that many modules."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and num_layers and len(module) == num_layers:
            return list(module)
    return None


def context_length(config: Any) -> int:
    """Largest number of positions whose law does not depend on how long the text became later.

    Ropes that change with the length of a text ("dynamic", "longrope") are used up to the point where they first would:
    beyond it rows that are cached would not be those that a fresh pass writes.
    """
    values = [getattr(config, name, None) for name in _LENGTH_NAMES]
    longest = next((int(value) for value in values if isinstance(value, int) and value > 0), _UNBOUNDED)
    return min(longest, _first_change(config) or longest)


def _first_change(config: Any) -> int | None:
    """Length at which the rotations change; None where they never do."""
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    ropes = [given, *(value for value in given.values() if isinstance(value, dict))]
    changing = [rope for rope in ropes if rope.get("rope_type", rope.get("type")) in _CHANGING_ROPES]
    if not changing:
        return None
    names = "original_max_position_embeddings"
    lengths = [rope.get(names) or getattr(config, names, None) for rope in changing]
    known = [int(length) for length in lengths if length]
    return min(known) if known else int(getattr(config, "max_position_embeddings", 0)) or None


class LibraryTarget:
    """What targets around a model of the library have in common; they add the cache and the pass.

    Args:
        model: the model.
        longest: positions that it was made for.
    """

    def __init__(self, model: CausalModel, longest: int) -> None:
        self._model, self._longest, self._vocab_size = model, longest, 0

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self._model.device

    @property
    def vocab_size(self) -> int:
        """Width of a logits row."""
        return self._vocab_size

    @property
    def context_length(self) -> int:
        """Largest number of positions."""
        return self._longest

    @property
    def weights(self) -> str:
        """The type of the weights."""
        return str(self._model.dtype).removeprefix("torch.")

    @property
    def weight_bytes(self) -> int:
        """Bytes of all matrices as stored, each once; those of all experts."""
        return self._model.weight_bytes
