"""What the law of a next token remembers: the committed tokens, counted, and the uncommitted path after them.

This module does not know logits, parameters or trees. Invariant: a `PathState` never changes and describes its own path
only, so a node's state is its parent's plus one token; the counts of a token are the same whether it is committed or
still on a path.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from outrider.core.types import IntArray

__all__ = ["History", "MaskState", "PathState"]


class MaskState(Protocol):
    """Which tokens something outside (a grammar) allows after a path; an immutable value."""

    def allowed(self) -> Any | None:
        """[V] booleans, or None where every token is allowed."""

    def child(self, token: int) -> "MaskState":
        """The state after one more token."""


class History:
    """The committed tokens of one request, counted when somebody asks and each once.

    Args:
        prompt: token ids before the output.

    Attributes:
        output: tokens committed after the prompt, in order.
    """

    def __init__(self, prompt: Iterable[int]) -> None:
        self.output: list[int] = []
        self._prompt = tuple(prompt)
        self._num_counted = 0  # of the output
        self._place: dict[int, int] = {}
        self._ids = np.zeros(64, dtype=np.int64)
        self._counts = np.zeros(64, dtype=np.int64)

    def append(self, token: int) -> None:
        """Commit one output token."""
        self.output.append(token)

    def extend(self, tokens: Iterable[int]) -> None:
        """Commit output tokens in order."""
        for token in tokens:
            self.append(int(token))

    def _count(self) -> None:
        """Count what has come since the last call."""
        for token in self._prompt:
            self._find(int(token))
        self._prompt = ()
        for token in self.output[self._num_counted :]:
            place = self._find(token)  # may grow the arrays
            self._counts[place] += 1
        self._num_counted = len(self.output)

    def _find(self, token: int) -> int:
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        return place

    def counts(self, path: Sequence[int]) -> tuple[IntArray, IntArray]:
        """Seen tokens [m], each once, and how often each stands in the output [m] (0: in the prompt only).

        Args:
            path: uncommitted tokens that count as output too.
        """
        self._count()
        size = len(self._place)
        ids, counts = self._ids[:size], self._counts[:size].copy()
        extra: dict[int, int] = {}
        for token in path:
            place = self._place.get(token)
            if place is None:
                extra[token] = extra.get(token, 0) + 1
            else:
                counts[place] += 1
        if not extra:
            return ids, counts
        more_ids, more_counts = (
            np.asarray(list(extra), dtype=np.int64),
            np.asarray(list(extra.values()), dtype=np.int64),
        )
        return np.concatenate([ids, more_ids]), np.concatenate([counts, more_counts])


@dataclass(frozen=True, slots=True, eq=False)
class PathState:
    """All that the law after a path depends on, beside the logits: an immutable value, made from its parent's.

    Attributes:
        history: the committed tokens; a state is valid until more of them are committed.
        num_committed: output tokens that were committed when the state was made.
        path: uncommitted tokens after them.
        mask: the outside mask's state after the path, or None without one.
    """

    history: History
    num_committed: int
    path: tuple[int, ...] = ()
    mask: MaskState | None = None

    @property
    def num_output(self) -> int:
        """Output tokens up to the end of the path."""
        return self.num_committed + len(self.path)

    def child(self, token: int) -> "PathState":
        """The state after one more token."""
        mask = None if self.mask is None else self.mask.child(token)
        return PathState(self.history, self.num_committed, (*self.path, int(token)), mask)

    def ends_with(self, tokens: Sequence[int]) -> bool:
        """Whether the output, the path included, ends with these tokens; they may span committed and path tokens."""
        missing = len(tokens) - len(self.path)
        committed = self.history.output[-missing:] if missing > 0 else []
        return (*committed, *self.path)[-len(tokens) :] == tuple(tokens)
