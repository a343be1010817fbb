"""The ordered processing chain: logits to the law that the next token is drawn from.

Order: logit bias, repetition penalty (prompt and output), presence and frequency penalties (output only), banned words
and early ends, the outside mask, temperature, top-k, top-p, min-p; each renormalises. top-k and top-p are thresholds on
*value*: tokens that tie with the last kept one stay in, so that the kept set depends neither on a sort nor on the width
of a pass.

This module does not know trees, drafters, text or where logits come from. Invariants: a row's law is a function of its
own logits and of the tokens on its own path, computed as its own row; a row whose law cannot be computed (a NaN or +inf
logit anywhere in it, or every token banned) is NaN in every entry, so that looking at one entry is enough.
"""

import copy
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import device

from outrider.core.arrays import exp_in_place, host_view, like, namespace, one_hot, select, topk_values, with_values
from outrider.core.history import History, MaskState, PathState
from outrider.core.params import SamplingParams
from outrider.core.types import IntArray
from outrider.errors import InvalidRequestError

__all__ = ["History", "MaskState", "PathState", "Processor", "RacingRow"]

_FLOORS = (1e-2, 1e-4, 1e-5, 1e-7, 0.0)
"""Shares of the largest probability down to which the cuts look, one after the other."""


@dataclass(frozen=True, slots=True)
class _Bans:
    """Tokens that may not come next: always, before the end is allowed, or after a certain tail."""

    always: IntArray
    ends: IntArray
    min_tokens: int
    after: tuple[tuple[tuple[int, ...], int], ...] = field(default=())

    @property
    def is_empty(self) -> bool:
        """Whether nothing is ever banned."""
        return not (self.always.size or self.min_tokens or self.after)

    def ids(self, state: PathState) -> IntArray:
        """[m] banned tokens after a path, perhaps repeated."""
        found = [self.always]
        if state.num_output < self.min_tokens:
            found.append(self.ends)
        completed = [last for tail, last in self.after if state.ends_with(tail)]
        if completed:
            found.append(np.asarray(completed, dtype=np.int64))
        return np.concatenate(found) if len(found) > 1 else self.always


class RacingRow(NamedTuple):
    """A law that is not written out: the softmax of a row of logits, and its cuts.

    Attributes:
        logits: [V] adjusted logits.
        scale: what they are multiplied with; infinity where the law is sure of the largest.
        top_k: tokens that stay at most; 0 for all.
        top_p: share of their sum that stays.
        min_p: share of the largest probability below which none stays.
    """

    logits: Any
    scale: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


class Processor:
    """One request's processing chain.

    Attributes:
        takes_largest: whether every law without a mask is sure of the token with the largest logit, the first of equal
            ones.
    """

    def __init__(self, params: SamplingParams, vocab_size: int, end_ids: Collection[int] = ()) -> None:
        """Check the request's token ids against the vocabulary.

        Args:
            params: what the request asks.
            vocab_size: number of tokens that a row of logits has.
            end_ids: tokens that end the output: the model's own and `params.stop_token_ids`; banned until `min_tokens`
                output tokens stand. Ids beyond the vocabulary can never be drawn and are left out.

        Raises:
            InvalidRequestError: a token id of `logit_bias`, `bad_words` or `stop_token_ids` is not in the vocabulary.
        """
        words = [tuple(int(token) for token in word) for word in params.bad_words]
        self._require_known("logit_bias", params.logit_bias, vocab_size)
        self._require_known("bad_words", (token for word in words for token in word), vocab_size)
        self._require_known("stop_token_ids", params.stop_token_ids, vocab_size)
        self.params = params
        self.vocab_size = vocab_size
        self._bias_ids = np.asarray(list(params.logit_bias), dtype=np.int64)
        self._bias = np.asarray(list(params.logit_bias.values()), dtype=np.float64)
        ends = sorted(token for token in {*end_ids, *params.stop_token_ids} if 0 <= token < vocab_size)
        self._bans = _Bans(
            always=np.asarray([word[0] for word in words if len(word) == 1], dtype=np.int64),
            ends=np.asarray(ends, dtype=np.int64),
            min_tokens=params.min_tokens,
            after=tuple((word[:-1], word[-1]) for word in words if len(word) > 1),
        )
        counted = params.presence_penalty or params.frequency_penalty
        self._penalises = params.repetition_penalty != 1.0 or bool(counted)
        self.takes_largest = params.is_greedy and self._bans.is_empty and not (self._penalises or params.logit_bias)

    @staticmethod
    def _require_known(name: str, ids: Iterable[int], vocab_size: int) -> None:
        for token in ids:
            if not 0 <= token < vocab_size:
                raise InvalidRequestError(
                    f"{name} names token {token}; give ids below {vocab_size}, the size of the vocabulary."
                )

    def start(self, history: History, mask: MaskState | None = None) -> PathState:
        """The state after the committed tokens.

        Args:
            history: the committed tokens; more may be committed later, which ends the life of this state.
            mask: the outside mask's state after them.
        """
        return PathState(history, len(history.output), (), mask)

    def uncut(self) -> "Processor":
        """The same chain without cuts, and at temperature 1 where it was greedy: it ranks tokens that the law drops."""
        twin = copy.copy(self)
        temperature = 1.0 if self.params.is_greedy else self.params.temperature
        twin.params = replace(self.params, temperature=temperature, top_k=0, top_p=1.0, min_p=0.0)
        twin.takes_largest = False
        return twin

    def law(self, logits: Any, states: Sequence[PathState]) -> Any:
        """The law of the next token after each of several paths.

        Args:
            logits: [k, V] float32 (or float64 in tests), the model's own numbers.
            states: [k] the path of each row.

        Returns:
            [k, V] probabilities of the kind, type and device of the logits.

        Raises:
            ValueError: the rows are not as wide as the vocabulary, or a state is older than the last commit.

        Note:
            A row is NaN in every entry where no law exists. The caller fails that request and no other.
        """
        if tuple(logits.shape) != (len(states), self.vocab_size):
            raise ValueError(f"logits have shape {tuple(logits.shape)}; expected {(len(states), self.vocab_size)}")
        rows = host_view(logits)
        laws = [self.law_of_row(rows[i], state) for i, state in enumerate(states)]
        xp = namespace(rows)
        stacked = laws[0][None, :] if len(laws) == 1 else xp.stack(laws) if laws else rows
        return like(stacked, logits)

    def only_token(self, row: Any, state: PathState) -> int | None:
        """The token that the law of a row of logits [V] is sure of, found without the law; None where it is not greedy.

        None also where there is no law: `law_of_row` says so.
        """
        if not self.params.is_greedy:
            return None
        self._check_age(state)
        adjusted = self._adjust(row, state)
        best = int(namespace(row).argmax(adjusted))
        return best if self._has_law(row, adjusted, best) else None

    def racing_row(self, row: Any, state: PathState) -> RacingRow | None:
        """What the law of a row of logits [V] is made from, for whoever can draw from it unwritten.

        None, or a row with a NaN or without a finite number, where there is no law; whoever draws looks.
        """
        params = self.params
        self._check_age(state)
        adjusted = self._adjust(row, state)
        if adjusted is not row and not bool(namespace(row).max(row) < float("inf")):
            return None
        if params.is_greedy:
            return RacingRow(adjusted, float("inf"))
        top_k = params.top_k if params.top_k < self.vocab_size else 0
        return RacingRow(adjusted, 1.0 / params.temperature, top_k, params.top_p, params.min_p)

    @staticmethod
    def _check_age(state: PathState) -> None:
        if state.num_committed != len(state.history.output):
            raise ValueError(
                f"the state was made at output token {state.num_committed}, since then more were committed"
            )

    @staticmethod
    def _has_law(row: Any, adjusted: Any, best: Any) -> bool:
        """Whether a row has a law; `best` is the place of its largest adjusted logit; a NaN counts as the largest."""
        xp = namespace(row)
        return bool(xp.isfinite(adjusted[best])) and (adjusted is row or bool(xp.max(row) < float("inf")))

    def law_of_row(self, row: Any, state: PathState) -> Any:
        """[V] the law of one row of logits [V]."""
        self._check_age(state)
        xp = namespace(row)
        adjusted = self._adjust(row, state)
        best = xp.argmax(adjusted)  # the first of equal values; a NaN counts as the largest
        if not self._has_law(row, adjusted, best):
            return xp.full((self.vocab_size,), float("nan"), dtype=row.dtype, device=device(row))
        if self.params.is_greedy:
            return one_hot(xp.reshape(best, (1,)), self.vocab_size, row.dtype)[0, :]
        with np.errstate(over="ignore"):  # far below the largest, -inf is as good
            below = adjusted - adjusted[best]  # a new array
            if self.params.temperature != 1.0:
                below *= 1.0 / self.params.temperature
        return self._cut(exp_in_place(below))

    def _adjust(self, row: Any, state: PathState) -> Any:
        """[V] logits after all that is added, multiplied or banned; the very row where there is nothing to do."""
        if self._bias_ids.size:
            ids = like(self._bias_ids, row)
            row = with_values(row, ids, row[ids] + namespace(row).astype(like(self._bias, row), row.dtype))
        if self._penalises:
            row = self._penalise(row, state)
        banned = self._bans.ids(state)
        if banned.size:
            row = with_values(row, like(banned, row), float("-inf"))
        allowed = None if state.mask is None else state.mask.allowed()
        if allowed is not None:
            row = namespace(row).where(like(allowed, row), row, float("-inf"))
        return row

    def _penalise(self, row: Any, state: PathState) -> Any:
        params, xp = self.params, namespace(row)
        seen, times = state.history.counts(state.path)
        if not seen.size:
            return row
        ids = like(seen, row)
        values = row[ids]
        if params.repetition_penalty != 1.0:
            penalty = params.repetition_penalty
            values = xp.where(values > 0, values / penalty, values * penalty)
        counts = xp.astype(like(times, row), row.dtype)
        present = xp.astype(counts > 0, row.dtype)
        values = values - params.presence_penalty * present - params.frequency_penalty * counts
        return with_values(row, ids, values)

    def _cut(self, weights: Any) -> Any:
        """[V] the law of weights [V] whose largest is 1, after top-k, top-p and min-p; it takes the weights' memory."""
        params, xp = self.params, namespace(weights)
        cut, pool = 0.0, weights
        if 0 < params.top_k < self.vocab_size:
            cut = _top_k_cut(weights, params.top_k)
            pool = select(weights, weights >= cut) if params.top_p < 1.0 else pool
        if params.top_p < 1.0:
            cut = max(cut, _top_p_cut(pool, params.top_p * float(xp.sum(pool))))
        cut = max(cut, params.min_p)  # every cut keeps the weights from some value on, so the largest value decides
        if cut <= 0.0:
            weights /= xp.sum(weights)
            return weights
        (kept,) = xp.nonzero(weights >= cut)
        values = weights[kept]
        weights[:] = 0.0
        weights[kept] = values / xp.sum(values)
        return weights


def _top_k_cut(weights: Any, top_k: int) -> float:
    """The `top_k`-th largest weight; 0 where fewer are positive."""
    for floor in _FLOORS:
        large = select(weights, weights > floor)
        if large.shape[0] >= top_k:
            return float(topk_values(large, top_k)[-1])
    return 0.0


def _top_p_cut(weights: Any, wanted: float) -> float:
    """The weight at which the mass of the largest weights reaches what is wanted.

    Args:
        weights: [n] weights whose largest is 1.
        wanted: the mass to hold.

    Note:
        Only the weights above the first floor that holds enough are sorted. Where the floors lie cannot change the
        answer.
    """
    xp = namespace(weights)
    for floor in _FLOORS:
        pool = select(weights, weights > floor)
        if float(xp.sum(pool)) >= wanted:
            break
    descending = xp.flip(xp.sort(pool, stable=False))  # values only, so stability means nothing and costs much
    reached = xp.nonzero(xp.cumulative_sum(xp.astype(descending, xp.float64)) >= wanted)[0]
    return float(descending[reached[0]]) if reached.shape[0] else 0.0
