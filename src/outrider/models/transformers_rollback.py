"""Models whose state cannot be cut back, by checkpoint and replay.

A recurrent or hybrid model folds its text into a state, and a rejected token cannot be taken out of it. So a slot keeps
the tokens that it holds and the states at two lengths: before the last pass and after it. A cut goes back to the last
state that is not too long; the tokens behind it are replayed at the beginning of the next pass. A tree is read path by
path, each from a copy of the state. This module knows slots and tokens; it knows neither requests nor files.

Invariants: a state that is kept is never written to again, passes run on copies; whatever a slot is cut to, its state
is that of exactly the tokens that are left, at worst by reading them all anew.
"""

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from outrider.cache.base import Cache
from outrider.cache.slots import Slots, check_nodes
from outrider.core.tree import is_chain, path
from outrider.errors import UnsupportedModelError
from outrider.models.base import ForwardInputs, ForwardOutputs, Segment
from outrider.models.checking import check_pass
from outrider.models.transformers_model import CausalModel

__all__ = ["Checkpoint", "ReplayTarget", "StateCache"]


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


class StateCache:
    """Tokens and checkpoints of many sequences; implements `cache.base.Cache`.

    Args:
        max_tokens: rows over all slots that may be reserved; None for no bound.
    """

    def __init__(self, max_tokens: int | None = None) -> None:
        self._slots = Slots(max_tokens)
        self._texts: dict[int, _Text] = {}

    row_bytes = 8  # a token; states are as large for any length, and `nbytes` counts them

    @property
    def free_rows(self) -> int | None:
        """Rows that may still be reserved; None without a bound."""
        return self._slots.free_rows

    def reserved(self, slot: int) -> int:
        """Rows that a slot may hold without another reservation."""
        return self._slots.reserved(slot)

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

    def length(self, slot: int) -> int:
        """Number of tokens that the slot holds."""
        return self._slots.length(slot)

    def reserve(self, slot: int, length: int) -> None:
        """Make room for `length` tokens in all.

        Raises:
            CacheFullError: the cache's budget does not allow it; nothing has changed.
        """
        self._slots.reserve(slot, length)

    def check_reserved(self, slot: int, length: int) -> None:
        """Check that a slot may hold `length` tokens.

        Raises:
            CacheFullError: they were not reserved.
        """
        self._slots.check_reserved(slot, length)

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
        if length > self._slots.length(source):
            raise ValueError(f"slot {source} holds {self._slots.length(source)} rows, cannot copy {length}")
        self.reserve(to, length)
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


class ReplayTarget:
    """A model that runs on the library's cache, one slot at a time; implements `models.base.Target`.

    Args:
        model: the model.
        longest: positions that it was made for.

    Attributes:
        reads_chunks: whether several tokens may follow a state in one pass; some families only take one.
    """

    rollback = "replay"

    def __init__(self, model: CausalModel, longest: int) -> None:
        self._model, self._longest = model, longest
        self.reads_chunks = False
        with torch.inference_mode():
            self._vocab_size = self._run(self._start(), 0, [0], [0]).shape[1]

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

    def make_cache(self, max_tokens: int | None = None) -> StateCache:
        """Give an empty cache for this model.

        Args:
            max_tokens: tokens over all slots that the cache may hold; None for no bound but memory.
        """
        return StateCache(max_tokens)

    def forward(self, inputs: ForwardInputs, cache: Cache) -> ForwardOutputs:
        """Run one pass, slot by slot; the cache keeps the states before and after it.

        Raises:
            CacheFullError: the rows of a segment were not reserved.
            ValueError: the inputs contradict each other or the cache.
            UnsupportedModelError: hidden states or a part of the layers were asked for.
        """
        started = time.perf_counter()
        if not isinstance(cache, StateCache):
            raise ValueError(f"this target needs a cache of its own make_cache, got {type(cache).__name__}")
        check_pass(inputs, cache)
        if inputs.hidden_layers or inputs.stop_after is not None:
            raise UnsupportedModelError(
                f"{self._model.name} runs by checkpoint and replay and shows no hidden layers; "
                "use a drafter that needs none."
            )
        logits = torch.empty(len(inputs.logits_rows), self.vocab_size, device=self.device)
        with torch.inference_mode():
            for segment in inputs.segments:
                self._read(segment, inputs, cache, logits)
        if self.device.type != "cpu":
            torch.cuda.synchronize(self.device)
        return ForwardOutputs(logits, {}, time.perf_counter() - started)

    def _read(self, segment: Segment, inputs: ForwardInputs, cache: StateCache, logits: torch.Tensor) -> None:
        """One slot's rows: what has to be replayed, then the chain, then a tree's paths."""
        fed = [int(token) for token in inputs.token_ids[segment.start : segment.start + segment.num_rows]]
        parents = None if segment.parents is None or is_chain(segment.parents) else segment.parents
        num_chain = segment.num_rows - (0 if parents is None else len(parents))
        before = self._caught_up(segment, cache)
        state = _fork(before.state)
        places = _places(inputs.logits_rows, segment)  # row of the segment -> row of the logits
        self._fill(logits, places, state, before.length, fed[:num_chain], range(num_chain))
        after = Checkpoint(before.length + num_chain, state)
        if parents is not None:
            self._read_paths(after, parents, fed[num_chain:], num_chain, places, logits)
        cache.extend(segment.slot, fed, [before, after] if before.length else [after])

    def _caught_up(self, segment: Segment, cache: StateCache) -> Checkpoint:
        """The state after the slot's cached tokens; those behind its last state are replayed."""
        known = cache.last(segment.slot) or Checkpoint(0, self._start())
        pending = cache.tokens(segment.slot)[known.length :]
        if not pending:
            return known
        state = _fork(known.state)
        self._run(state, known.length, pending, [])
        return Checkpoint(segment.num_cached, state)

    def _read_paths(
        self,
        root: Checkpoint,
        parents: np.ndarray,
        tokens: Sequence[int],
        first: int,
        places: dict[int, int],
        logits: torch.Tensor,
    ) -> None:
        """Each path from the root to a leaf, from a copy of the root's state."""
        for leaf in sorted(set(range(len(parents))) - set(parents.tolist())):
            line = path(parents, leaf)
            rows = [first + node for node in line]
            self._fill(logits, places, _fork(root.state), root.length, [tokens[node] for node in line], rows)

    def _fill(
        self,
        logits: torch.Tensor,
        places: dict[int, int],
        state: Any,
        length: int,
        tokens: Sequence[int],
        rows: Sequence[int],
    ) -> None:
        """Advance a state by tokens that stand in these rows of the segment, and note the logits that are wanted."""
        wanted = [number for number, row in enumerate(rows) if row in places]
        found = self._run(state, length, tokens, wanted)
        for number, scores in zip(wanted, found, strict=True):
            logits[places[rows[number]]] = scores

    def _run(self, state: Any, length: int, tokens: Sequence[int], wanted: Sequence[int]) -> torch.Tensor:
        """[len(wanted), V] logits after some of the tokens; the state is advanced by all of them."""
        ids = torch.tensor(tokens, device=self.device)
        positions = torch.arange(length, length + len(tokens), device=self.device)
        if length == 0 or self.reads_chunks:
            return self._model.run(ids, positions, state, torch.tensor(wanted, dtype=torch.int64, device=self.device))
        kept = torch.empty(len(wanted), self._vocab_size, device=self.device)
        places = {number: place for place, number in enumerate(wanted)}
        zero = torch.zeros(1, dtype=torch.int64, device=self.device)
        for number in range(len(tokens)):
            row = zero if number in places else zero[:0]
            scores = self._model.run(ids[number : number + 1], positions[number : number + 1], state, row)
            if number in places:
                kept[places[number]] = scores[0]
        return kept

    def _start(self) -> Any:
        """The state of an empty text."""
        from transformers import DynamicCache

        return DynamicCache(config=self._model.model.config)


def _places(logits_rows: np.ndarray, segment: Segment) -> dict[int, int]:
    """Row of the segment -> row of the logits."""
    end = segment.start + segment.num_rows
    return {int(row) - segment.start: place for place, row in enumerate(logits_rows) if segment.start <= row < end}


def _fork(state: Any) -> Any:
    """A copy of a state that may be written to. Keys and values grow by new tensors, so those are shared."""
    from transformers.cache_utils import DynamicLayer

    fork = copy.copy(state)
    fork.layers = [_fork_layer(layer, isinstance(layer, DynamicLayer)) for layer in state.layers]
    return fork


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
