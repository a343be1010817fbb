"""Hypothesis strategies for laws, trees and sampling parameters, shared by the tests of all layers."""

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from outrider.core.params import SamplingParams
from outrider.core.types import Proposal

__all__ = ["laws", "logits_rows", "parents", "proposals", "sampling_params", "tree_shapes"]


def laws(vocab_size: int) -> st.SearchStrategy[np.ndarray]:
    """[V] laws with zeros, ties and very uneven entries among them."""
    weight = st.sampled_from([0.0, 1e-9, 0.01, 0.3, 1.0, 1.0, 2.0, 7.0])
    return (
        st.lists(weight, min_size=vocab_size, max_size=vocab_size)
        .filter(lambda weights: sum(weights) > 0.1)
        .map(lambda weights: np.asarray(weights) / np.sum(weights))
    )


def logits_rows(vocab_size: int) -> st.SearchStrategy[np.ndarray]:
    """[V] float64 logits: halves (so that ties are common), some of them -inf, at least one finite."""
    value = st.integers(-12, 12).map(lambda half: half / 2) | st.just(float("-inf"))
    return (
        st.lists(value, min_size=vocab_size, max_size=vocab_size)
        .filter(lambda row: any(np.isfinite(row)))
        .map(lambda row: np.asarray(row, dtype=np.float64))
    )


@st.composite
def parents(draw: st.DrawFn, max_nodes: int = 6) -> np.ndarray:
    """[n] parents arrays, the empty tree among them."""
    count = draw(st.integers(0, max_nodes))
    return np.asarray([draw(st.integers(-1, node - 1)) for node in range(count)], dtype=np.int64)


@st.composite
def proposals(draw: st.DrawFn, vocab_size: int, max_nodes: int = 6) -> Proposal:
    """Deterministic trees whose siblings are different tokens."""
    shape = draw(parents(max_nodes))
    used: dict[int, set[int]] = {}
    tokens: list[int] = []
    kept: list[int] = []
    numbers = {-1: -1}
    for node, parent in enumerate(shape.tolist()):
        free = [token for token in range(vocab_size) if token not in used.get(parent, set())]
        if parent not in numbers or not free:
            continue
        token = draw(st.sampled_from(free))
        used.setdefault(parent, set()).add(token)
        numbers[node] = len(kept)
        kept.append(numbers[parent])
        tokens.append(token)
    count = len(kept)
    return Proposal(
        tokens=np.asarray(tokens, dtype=np.int64),
        parents=np.asarray(kept, dtype=np.int64),
        draw=np.zeros(count, dtype=np.int64),
        source=("toy",) * count,
        confidence=np.asarray(draw(st.lists(st.floats(0, 1), min_size=count, max_size=count)), dtype=np.float64),
    )


@st.composite
def tree_shapes(draw: st.DrawFn, max_nodes: int = 4, max_depth: int = 3) -> list[list[int]]:
    """Children of each node, level by level: ragged trees with at least one node."""
    room, nodes = max_nodes, 1
    levels: list[list[int]] = []
    while room > 0 and nodes > 0 and len(levels) < max_depth:
        counts: list[int] = []
        for _ in range(nodes):
            counts.append(draw(st.integers(0 if levels else 1, min(3, room))))
            room -= counts[-1]
        levels.append(counts)
        nodes = sum(counts)
    return levels


@st.composite
def sampling_params(
    draw: st.DrawFn, vocab_size: int, temperatures: Sequence[float] = (0.0, 0.3, 1.0, 2.0)
) -> SamplingParams:
    """Every processor, on or off."""
    token = st.integers(0, vocab_size - 1)
    return SamplingParams(
        temperature=draw(st.sampled_from(temperatures)),
        top_k=draw(st.integers(0, vocab_size + 1)),
        top_p=draw(st.sampled_from([1.0, 0.97, 0.83, 0.51, 0.07])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.03, 0.31, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3, 0.7])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 0.4, -1.1])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.6, -0.3])),
        logit_bias=draw(st.dictionaries(token, st.sampled_from([-100.0, -0.7, 1.9]), max_size=2)),
        bad_words=draw(st.lists(st.lists(token, min_size=1, max_size=3), max_size=2)),
        min_tokens=draw(st.integers(0, 4)),
    )
