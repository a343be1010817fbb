"""Algebra of the parents array: everything about a tree's shape that follows from it.

Pure functions on integers. This module does not know laws, caches or rules. Invariant of every tree here: -1 is the
root (the last committed token), parents stand before their children, siblings in draw order.
"""

from collections.abc import Iterable, Sequence, Set

import numpy as np
from numpy.typing import NDArray

from outrider.core.params import Draw
from outrider.core.types import IntArray, Proposal

__all__ = [
    "ROOT",
    "ancestor_mask",
    "children",
    "closed",
    "depths",
    "is_chain",
    "merge",
    "path",
    "probs_rows",
    "subset",
    "validate",
    "with_ancestors",
]

ROOT = -1
"""The number that stands for the last committed token wherever a node is meant."""


def depths(parents: IntArray) -> IntArray:
    """[n] steps from the root to each node; 1 for the root's children."""
    result = np.ones(len(parents), dtype=np.int64)
    for node, parent in enumerate(parents.tolist()):
        if parent >= 0:
            result[node] = result[parent] + 1
    return result


def children(parents: IntArray) -> list[list[int]]:
    """[n + 1] the children of each node in draw order; those of the root stand last, at index -1."""
    result: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents.tolist()):
        result[parent].append(node)
    return result


def path(parents: IntArray, node: int) -> tuple[int, ...]:
    """Nodes from the root's child down to `node`; empty for the root."""
    nodes: list[int] = []
    while node >= 0:
        nodes.append(node)
        node = int(parents[node])
    return tuple(reversed(nodes))


def ancestor_mask(parents: IntArray) -> NDArray[np.bool_]:
    """[n, n] row i is true at the ancestors of node i and at node i itself: what it may attend to in the tree."""
    mask = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents.tolist()):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask


def is_chain(parents: IntArray) -> bool:
    """Whether no node has two children; the empty tree is a chain."""
    return bool(parents.tolist() == list(range(-1, len(parents) - 1)))


def closed(parents: IntArray, nodes: Iterable[int]) -> bool:
    """Whether the parent of each of the nodes is among them or the root."""
    kept = set(nodes)
    return all(parent == ROOT or parent in kept for parent in (int(parents[node]) for node in kept))


def probs_rows(parents: IntArray) -> dict[int, int]:
    """Parent -> its row in `Proposal.probs`: parents in order of their first appearance."""
    rows: dict[int, int] = {}
    for parent in parents.tolist():
        rows.setdefault(parent, len(rows))
    return rows


def subset(proposal: Proposal, nodes: Iterable[int]) -> Proposal:
    """The part of a tree that is left when all other nodes are cut.

    Args:
        proposal: the tree.
        nodes: numbers of the nodes to keep, in any order, closed under parents.

    Returns:
        The smaller tree, its nodes in the old order, `probs` with the rows of the parents that still have children.

    Raises:
        ValueError: a node is kept whose parent is not.
    """
    kept = sorted({int(node) for node in nodes})
    if not closed(proposal.parents, kept):
        raise ValueError(f"nodes {kept} are not closed under parents {proposal.parents.tolist()}")
    numbers = {node: number for number, node in enumerate(kept)} | {ROOT: ROOT}
    index = np.asarray(kept, dtype=np.int64)
    old_parents = proposal.parents[index]
    draw = _without_samples(proposal, set(kept))[index]
    probs = proposal.probs
    if probs is not None:
        old_rows = probs_rows(proposal.parents)
        probs = probs[[old_rows[parent] for parent in probs_rows(old_parents)]]
    return Proposal(
        tokens=proposal.tokens[index],
        parents=np.asarray([numbers[parent] for parent in old_parents.tolist()], dtype=np.int64),
        draw=draw,
        source=tuple(proposal.source[node] for node in kept),
        confidence=proposal.confidence[index],
        probs=probs,
    )


def _without_samples(proposal: Proposal, kept: Set[int]) -> IntArray:
    """[n] `draw` of each node, once the others are cut: companions of a sample that is cut are deterministic alone."""
    draw = proposal.draw.copy()
    for siblings in children(proposal.parents):
        group = [node for node in siblings if draw[node] == Draw.TOP_PLUS_SAMPLE]
        if group and group[-1] not in kept:
            draw[group] = int(Draw.DETERMINISTIC)
    return draw


def with_ancestors(parents: IntArray, nodes: Iterable[int]) -> IntArray:
    """The nodes and all that stand above them, ascending: closed under parents."""
    return np.asarray(sorted({above for node in nodes for above in path(parents, int(node))}), dtype=np.int64)


def validate(proposal: Proposal, vocab_size: int) -> None:
    """Check that a proposal is a tree of possible tokens.

    Args:
        proposal: the tree.
        vocab_size: number of tokens that the target knows.

    Raises:
        ValueError: lengths differ, or a node's parent, token, draw or confidence is impossible; the node is named. Also
            where a sampled node has no law, or `probs` has not one row [V] a parent.
    """
    count = len(proposal.tokens)
    lengths = {len(proposal.parents), len(proposal.draw), len(proposal.source), len(proposal.confidence)}
    if lengths != {count}:
        raise ValueError(f"a proposal of {count} tokens has arrays of lengths {sorted(lengths)}")
    for node in range(count):
        _validate_node(proposal, node, vocab_size)
    expected = (len(probs_rows(proposal.parents)), vocab_size)
    if proposal.probs is not None and tuple(proposal.probs.shape) != expected:
        raise ValueError(f"probs has shape {tuple(proposal.probs.shape)}; {expected} fits the tree")


def _validate_node(proposal: Proposal, node: int, vocab_size: int) -> None:
    parent, token = int(proposal.parents[node]), int(proposal.tokens[node])
    draw, confidence = int(proposal.draw[node]), float(proposal.confidence[node])
    if not -1 <= parent < node:
        raise ValueError(f"node {node} has parent {parent}; parents stand before their children, -1 is the root")
    if not 0 <= token < vocab_size:
        raise ValueError(f"node {node} has token {token}; the vocabulary has {vocab_size}")
    if draw not in set(Draw):
        raise ValueError(f"node {node} has draw {draw}, which is no kind of draw")
    if not 0.0 <= confidence <= 1.0:
        raise ValueError(f"node {node} has confidence {confidence}; confidences lie in [0, 1]")
    if draw not in (Draw.DETERMINISTIC, Draw.SHARED_NOISE) and proposal.probs is None:
        raise ValueError(f"node {node} was drawn as {Draw(draw).name} but the proposal has no probs")


def merge(proposals: Sequence[Proposal]) -> Proposal:
    """One tree that holds every path of several trees, for the rule MATCH.

    Args:
        proposals: trees that start at the same committed text, in order of preference.

    Returns:
        The tree in which an equal token under an equal parent is one node, with its first source and draw and its
        largest confidence. `probs` is dropped: a merged tree is drawn from no law, which only MATCH allows.
    """
    found: dict[tuple[int, int], int] = {}
    tokens: list[int] = []
    parents: list[int] = []
    draw: list[int] = []
    source: list[str] = []
    confidence: list[float] = []
    for proposal in proposals:
        numbers = {ROOT: ROOT}
        for node, (token, old_parent) in enumerate(
            zip(proposal.tokens.tolist(), proposal.parents.tolist(), strict=True)
        ):
            parent = numbers[old_parent]
            number = numbers[node] = found.setdefault((parent, token), len(tokens))
            value = float(proposal.confidence[node])
            if number < len(tokens):
                confidence[number] = max(confidence[number], value)
                continue
            tokens.append(token)
            parents.append(parent)
            draw.append(int(proposal.draw[node]))
            source.append(proposal.source[node])
            confidence.append(value)
    return Proposal(
        tokens=np.asarray(tokens, dtype=np.int64),
        parents=np.asarray(parents, dtype=np.int64),
        draw=np.asarray(draw, dtype=np.int64),
        source=tuple(source),
        confidence=np.asarray(confidence, dtype=np.float64),
    )
