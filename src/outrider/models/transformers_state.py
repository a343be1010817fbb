"""The tokens of a slot and the states that a model had after some of them.

A state is the library's cache object; it cannot be cut back, so it is kept at two lengths and copied before it is
written to. This module knows no model and no pass. Invariants: a state that is kept is never written to again; states
are of lengths that the slot still holds.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from outrider.cache.slots import check_nodes
from outrider.cache.slotted import SlottedCache

__all__ = ["Checkpoint", "StateCache", "fork"]


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A model's state after the first `length` tokens of a slot; never written to."""

    length: int
    state: Any


@dataclass(slots=True)
class _Text:
    """The tokens of a slot and the states that are kept of them, shortest first."""

    tokens: list[int] = field(default_factory=list)
    states: list[Checkpoint] = field(default_factory=list)

    def cut(self, length: int, same: int | None = None) -> None:
        """Keep `length` tokens, and the states of at most `same` of them."""
        limit = length if same is None else same
        del self.tokens[length:]
        self.states = [state for state in self.states if state.length <= limit]


class StateCache(SlottedCache):
    """Tokens and checkpoints of many sequences; implements `cache.base.Cache`.

    Args:
        max_tokens: rows over all slots that may be reserved; None for no bound.
    """

    def __init__(self, max_tokens: int | None = None) -> None:
        super().__init__(max_tokens)
        self._texts: dict[int, _Text] = {}

    row_bytes = 8  # a token; states are as large for any length, and `nbytes` counts them

    @property
    def nbytes(self) -> int:
        """Bytes of all states that are kept; tensors that two of them share count once."""
        tensors: dict[int, torch.Tensor] = {}
        for text in self._texts.values():
            for checkpoint in text.states:
                tensors |= {id(tensor): tensor for tensor in _tensors(checkpoint.state)}
        return sum(tensor.nbytes for tensor in tensors.values())

    def acquire(self) -> int:
        """Give a free, empty slot."""
        slot = self._slots.acquire()
        self._texts[slot] = _Text()
        return slot

    def release(self, slot: int) -> None:
        """Take a slot back with its states."""
        self._slots.release(slot)
        del self._texts[slot]

    def tokens(self, slot: int) -> tuple[int, ...]:
        """The tokens that the slot holds."""
        return tuple(self._texts[slot].tokens)

    def last(self, slot: int) -> Checkpoint | None:
        """The longest state that is kept of a slot; None where its text must be read anew."""
        states = self._texts[slot].states
        return states[-1] if states else None

    def extend(self, slot: int, tokens: Sequence[int], states: Sequence[Checkpoint]) -> None:
        """Note a pass: the tokens that the slot holds more, and the states that take the place of the old ones.

        Raises:
            CacheFullError: the tokens were not reserved.
        """
        text = self._texts[slot]
        self._slots.extend(slot, len(text.tokens) + len(tokens))
        text.tokens += [int(token) for token in tokens]
        text.states = list(states)

    def truncate(self, slot: int, length: int) -> None:
        """Keep the first `length` tokens.

        Raises:
            ValueError: the slot holds fewer.
        """
        self._slots.truncate(slot, length)
        self._texts[slot].cut(length)

    def keep(self, slot: int, length: int, nodes: Sequence[int]) -> None:
        """Keep the first `length` tokens, then tokens `length + node`, moved up in the order of `nodes`.

        Raises:
            ValueError: the slot holds fewer tokens, or the nodes do not ascend.
        """
        kept = [int(node) for node in nodes]
        check_nodes(kept, self._slots.length(slot) - length)
        text = self._texts[slot]
        num_same = next((place for place, node in enumerate(kept) if node != place), len(kept))
        text.tokens[length : length + len(kept)] = [text.tokens[length + node] for node in kept]
        self._slots.truncate(slot, length + len(kept))
        text.cut(length + len(kept), length + num_same)

    def copy(self, source: int, to: int, length: int) -> None:
        """Make slot `to` hold the first `length` tokens of `source`, and nothing else.

        Raises:
            ValueError: `source` holds fewer tokens.
            CacheFullError: the budget does not allow it; nothing has changed.
        """
        self._begin_copy(source, to, length)
        held = self._texts[source]
        self._texts[to] = _Text(list(held.tokens), list(held.states))
        self._texts[to].cut(length)
        self._slots.extend(to, length)

    def check_integrity(self) -> None:
        """Check the invariants of slots, tokens and states.

        Raises:
            RuntimeError: one does not hold.
        """
        self._slots.check_integrity()
        if set(self._texts) != set(self._slots.in_use):
            raise RuntimeError("slots in use and slots with a text differ")
        for slot, text in self._texts.items():
            if len(text.tokens) != self._slots.length(slot):
                raise RuntimeError(f"slot {slot} holds {len(text.tokens)} tokens, not {self._slots.length(slot)}")
            lengths = [state.length for state in text.states]
            if lengths != sorted(set(lengths)) or (lengths and lengths[-1] > len(text.tokens)):
                raise RuntimeError(f"slot {slot} of {len(text.tokens)} tokens keeps states of {lengths}")


def fork(state: Any) -> Any:
    """A copy of a state that may be written to. Keys and values grow by new tensors, so those are shared."""
    from transformers.cache_utils import DynamicLayer

    copied = copy.copy(state)
    copied.layers = [_fork_layer(layer, isinstance(layer, DynamicLayer)) for layer in state.layers]
    return copied


def _fork_layer(layer: Any, shares_keys: bool) -> Any:
    fork = copy.copy(layer)
    for name, value in vars(layer).items():
        if not (shares_keys and name in ("keys", "values")):
            setattr(fork, name, _cloned(value))
    return fork


def _cloned(value: Any) -> Any:
    """Tensors are cloned, containers rebuilt, anything else is a plain number or flag."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _cloned(part) for key, part in value.items()}
    return [_cloned(part) for part in value] if isinstance(value, list) else value


def _tensors(state: Any) -> list[torch.Tensor]:
    """All tensors of a state."""
    found: list[torch.Tensor] = []
    for layer in state.layers:
        for value in vars(layer).values():
            parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
            found += [part for part in parts if isinstance(part, torch.Tensor)]
    return found
