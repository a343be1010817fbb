"""Whether a model of transformers gives its own logits in our ways of running it: a few short passes at loading.

A family may ignore positions, make masks of its own or reset its state when several tokens come at once, and no list
of names would stay complete. So each way is compared with the model's plain pass over a whole text. This module knows
targets and passes; it decides nothing. Invariant: the texts of a trial are the same in every process.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from outrider.models.base import ForwardInputs, Segment, Target
from outrider.models.transformers_model import CausalModel

__all__ = ["agrees_in_passes", "agrees_step_by_step", "reads_chunks"]

_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4}  # of the spread of the logits
_MORE, _LEAST = 8.0, 1e-6
_COARSE = 0.05  # half precision rounds, and experts may flip at a tie


def agrees_in_passes(target: Any, model: CausalModel) -> bool:
    """Whether a ragged pass of two texts, one with a tree behind it, gives the logits of each path alone.

    Args:
        target: the model through the attention interface.
        model: the same model.
    """
    first, second = _text(target, 7, 0), _text(target, 5, 1)
    nodes, parents = _text(target, 3, 2), np.array([-1, -1, 0])
    cache = target.make_cache()
    slots = [cache.acquire(), cache.acquire()]
    for slot in slots:
        cache.reserve(slot, 16)
    target.forward(_chain(first[:5], slots[0], 0, ()), cache)
    inputs = ForwardInputs(
        token_ids=np.concatenate([first[5:], nodes, second]),
        positions=np.concatenate([[5, 6], [7, 7, 8], np.arange(5)]),
        segments=[Segment(slots[0], 0, 5, 5, parents), Segment(slots[1], 5, 5, 0)],
        logits_rows=np.arange(10),
    )
    ours = target.forward(inputs, cache).logits
    paths = [np.concatenate([first, nodes[[0, 2]]]), np.concatenate([first, nodes[[1]]]), second]
    left, right, other = (_plain(model, tokens) for tokens in paths)
    expected = torch.cat([left[5:7], left[7:8], right[7:8], left[8:9], other])
    return _close(ours, expected, model.dtype)


def agrees_step_by_step(target: Any, model: CausalModel) -> bool:
    """Whether texts that are read token by token in turns, one of them after a cut, give the logits of the whole.

    In turns, because some families keep their state in their modules instead of the cache: there texts would mix.

    Args:
        target: the model by checkpoint and replay.
        model: the same model.
    """
    texts = [_text(target, 7, 0), _text(target, 7, 1)]
    cache = target.make_cache()
    slots = [cache.acquire(), cache.acquire()]
    logits: list[list[torch.Tensor]] = [[], []]
    for first, end in ((0, 3), (3, 4), (4, 5), (5, 6), (6, 7)):
        for slot, text, found in zip(slots, texts, logits, strict=True):
            cache.reserve(slot, end)
            found.append(target.forward(_chain(text[first:end], slot, first, range(end - first)), cache).logits)
    cache.truncate(slots[0], 5)
    logits[0][-2:] = [
        target.forward(_chain(texts[0][first:][:1], slots[0], first, (0,)), cache).logits for first in (5, 6)
    ]
    return all(
        _close(torch.cat(found), _plain(model, text), model.dtype) for text, found in zip(texts, logits, strict=True)
    )


def reads_chunks(target: Any, model: CausalModel) -> bool:
    """Whether several tokens may follow a state in one pass; leaves the target as it was.

    They may where that differs from the whole text by no more than single tokens do. A wrong no costs time only.

    Args:
        target: the model by checkpoint and replay.
        model: the same model.
    """
    tokens, before = _text(target, 9, 0), target.reads_chunks
    whole = _plain(model, tokens)
    rounding = _distance(_in_pieces(target, tokens, [3, *[1] * 6]), whole)
    target.reads_chunks = True
    try:
        return _distance(_in_pieces(target, tokens, [2, 4, 3]), whole) <= _MORE * rounding + _LEAST
    except (RuntimeError, ValueError, IndexError):  # families that take one token only fail on shapes
        return False
    finally:
        target.reads_chunks = before


def _text(target: Target, length: int, number: int) -> np.ndarray:
    return (np.arange(1, length + 1) * 7919 + number * 104729) % min(target.vocab_size, 4096)


def _plain(model: CausalModel, tokens: np.ndarray) -> torch.Tensor:
    """[n, V] logits of the model's own pass over a whole text, without any cache."""
    before = model.model.config._attn_implementation
    ids = torch.from_numpy(tokens).to(model.device)
    rows = torch.arange(len(tokens), device=model.device)
    model.model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            return model.run(ids, None, None, rows)
    finally:
        model.model.set_attn_implementation(before)


def _in_pieces(target: Target, tokens: np.ndarray, sizes: Sequence[int]) -> torch.Tensor:
    """[n, V] logits of a text that is read in pieces."""
    cache = target.make_cache()
    slot = cache.acquire()
    cache.reserve(slot, len(tokens))
    logits, done = [], 0
    for size in sizes:
        inputs = _chain(tokens[done : done + size], slot, done, range(size))
        logits.append(target.forward(inputs, cache).logits)
        done += size
    return torch.cat(logits)


def _chain(tokens: np.ndarray, slot: int, num_cached: int, wanted: Sequence[int]) -> ForwardInputs:
    positions = np.arange(num_cached, num_cached + len(tokens))
    rows = np.asarray(wanted, dtype=np.int64)
    return ForwardInputs(tokens, positions, [Segment(slot, 0, len(tokens), num_cached)], rows)


def _close(ours: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether two tables of logits [n, V] differ by rounding only; never where one is not finite."""
    return _distance(ours, expected) <= _TOLERANCE.get(dtype, _COARSE)


def _distance(ours: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference of two tables of logits [n, V], as a share of their spread."""
    spread = (expected.max() - expected.min()).clamp(min=1e-6)
    return float((ours - expected).abs().max() / spread)
