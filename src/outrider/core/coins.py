"""Randomness as an object that is asked, and the noise that answers when serving.

The rules hold no generator: they ask `Coins`. Serving answers with `BatchCoins`, whose every number is a function of a
key; tests answer by enumeration, on the very lines that serve. Keys:

* MATCH: (seed, position, token). The sampled token is a function of seed and law alone, so nothing drafted can change
  it.
* every other rule: (seed, round, node, purpose) and the token where one is drawn; the purposes are draft, accept and
  residual. Draft noise is keyed by (parent, number of the child). A round is one judged pass of the request, never
  repeated.

This module does not know models, trees or rules. Invariants: a number depends on nothing but its key, so any subset of
tokens can be computed; uniforms have 53 bits; from noise to token there is one code path, in float64, for target and
draft alike.
"""

import enum
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from outrider.core.arrays import (
    host_view,
    like,
    logical_shift,
    mix64,
    mix64_number,
    namespace,
    segment_argmin,
    signed64,
    smallest,
    support,
    to_numpy,
)
from outrider.core.types import IntArray

__all__ = [
    "At",
    "BatchCoins",
    "Coins",
    "DraftCoins",
    "Purpose",
    "Stream",
    "choice_seed",
    "exponentials",
    "fresh_seed",
    "race",
    "stream_states",
    "uniforms_of",
]


class At(NamedTuple):
    """What the rows of a question stand for; three arrays of one length.

    Attributes:
        request: [k] number of the request in the batch.
        node: [k] node judged (`accept`) or node whose successor is drawn (`sample`, `draw`); -1 is the root.
        position: [k] index, in the whole sequence, of the token being drawn.
    """

    request: IntArray
    node: IntArray
    position: IntArray


class Coins(Protocol):
    """Answers the questions of `verify`; rows are independent."""

    def sample(self, law: Any, at: At) -> IntArray:
        """[k] tokens of laws [k, V], a function of (seed, position) only: the MATCH rule."""

    def accept(self, prob: Any, at: At) -> Any:
        """[k] booleans, row i true with probability min(1, prob[i]) and never where prob[i] is 0."""

    def draw(self, law: Any, at: At) -> IntArray:
        """[k] tokens of laws [k, V], fresh in each round: bonus and residual tokens of the law-exact rules."""


class DraftCoins(Protocol):
    """One request's draft noise for one round, as a model drafter asks for it."""

    def shared(self, law: Any, position: int, count: int) -> IntArray:
        """[<= count] tokens with the best scores under the very noise that MATCH uses at `position`, best first."""

    def independent(self, law: Any, parent: int, child: int) -> int:
        """One token of the law [V], for child number `child` of node `parent`."""

    def without_replacement(self, law: Any, parent: int, count: int) -> IntArray:
        """[<= count] different tokens of the law [V], in draw order."""


class Purpose(enum.IntEnum):
    """The first word of a key after the seed: what the noise is for."""

    MATCH = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3
    CHOICE = 4


_GAMMA = signed64(0x9E3779B97F4A7C15)
_MANY = 4096
"""Racing tokens above which those that cannot win are left out first; the winners are the same."""
_BLOCK = 16_384
"""Tokens of a long row that race at once on a CPU, so that what lies between stays in the processor's cache."""


find_contenders: Callable[[Any, int], IntArray | None] | None = None
"""A compiled search for the tokens of a float32 row that can still win, set by whoever has one; the winner is the same.

It is given a law [V] in main memory and a stream's state, and gives the tokens in ascending order, or None where it
gives up.
"""


find_winners: Callable[[Sequence[Any], IntArray], IntArray] | None = None
"""A compiled race of softmax rows, set by whoever has one, that writes no law out; the winners are the same.

It is given `core.process.RacingRow`s of float32 in main memory and a stream's state for each, and gives their tokens,
-1 where it leaves the answer to `race`.
"""


def _words(values: Any) -> IntArray:
    return np.atleast_1d(np.asarray(values, dtype=np.int64))


def _number(word: Any) -> int | None:
    """A word that is one number, alone or in an array, else None."""
    if isinstance(word, int):
        return int(word)
    if isinstance(word, np.integer) or (isinstance(word, np.ndarray) and word.size == 1):
        return int(word.item())
    return None


def stream_states(seeds: Any, *key: Any) -> IntArray:
    """[k] states of the noise streams that (seed, *key) name.

    Args:
        seeds: [k] or one 64-bit seed.
        key: words of the key, each [k] or one number.

    Note:
        Each word moves the state along SplitMix64's sequence and scrambles it, so that neighbouring seeds, positions
        and nodes share nothing. The values are pinned by tests.
    """
    numbers = [_number(word) for word in (seeds, *key)]
    if None not in numbers:
        return _state_of_numbers([number for number in numbers if number is not None])
    state: IntArray = mix64(_words(seeds) + _GAMMA)
    for word in key:
        state = mix64(state + (_words(word) + 1) * _GAMMA)
    return state


def _state_of_numbers(numbers: Sequence[int]) -> IntArray:
    """[1] the state that single numbers name: the same arithmetic without arrays."""
    state = mix64_number(numbers[0] + _GAMMA)
    for number in numbers[1:]:
        state = mix64_number(state + (number + 1) * _GAMMA)
    return np.asarray([state], dtype=np.int64)


def uniforms_of(states: Any, counters: Any) -> Any:
    """[m] float64 multiples of 2**-53 in [0, 1): number `counters` of the streams `states`."""
    xp = namespace(states)
    numbers = (counters + 1) * _GAMMA + states
    uniforms = xp.astype(logical_shift(mix64(numbers), 11), xp.float64)
    uniforms *= 2.0**-53
    return uniforms


def exponentials(uniforms: Any) -> Any:
    """[m] float64 standard exponential noise: -log1p(-u), with 2**-54 for u = 0, so never 0 and never infinite."""
    xp = namespace(uniforms)
    return -xp.log1p(-xp.where(uniforms > 0, uniforms, 2.0**-54))


def race(law: Any, states: IntArray, count: int = 1) -> IntArray:
    """Draw tokens by an exponential race: token x arrives at time e(x) / p(x), the first ones win.

    Args:
        law: [k, V] laws; rows need not sum to exactly 1.
        states: [k] noise stream of each row; the token is the counter in it.
        count: how many tokens are wanted; more than one needs a single row.

    Returns:
        [k] winners, or for one row the [<= count] first tokens in order of arrival: a sample of the law without
        replacement.

    Note:
        A token of probability 0 never takes part; the winner is a sample of the law. The same as the largest
        log p + Gumbel noise, without a logarithm of p.

    Source:
        Efraimidis and Spirakis, 2006 (weighted sampling without replacement); Maddison, Tarlow, Minka, 2014,
        arXiv 1411.0030 (Gumbel argmax).
    """
    law = host_view(law)
    if type(law) is np.ndarray and law.shape[1] > _MANY:
        return np.concatenate([_long_race(row, state, count) for row, state in zip(law, states, strict=True)])
    rows, tokens, probs = support(law)
    if len(tokens) == len(states):  # one token a row: no noise is needed
        return to_numpy(tokens)
    streams = like(states, tokens)
    uniforms = uniforms_of(streams if len(states) == 1 else streams[rows], tokens)
    probs = namespace(probs).astype(probs, uniforms.dtype)
    if len(tokens) > _MANY:
        (near,) = _contenders(uniforms / probs, probs, rows, len(states), count)
        rows, tokens, probs, uniforms = rows[near], tokens[near], probs[near], uniforms[near]
    times = exponentials(uniforms) / probs
    return to_numpy(tokens[_first(times, rows, len(states), count)])


def _long_race(row: Any, state: Any, count: int) -> IntArray:
    """[<= count] winners of one long row [V] in main memory: each block sends those that can still win to the final."""
    if find_contenders is not None and count == 1 and row.dtype == np.float32 and row.flags.c_contiguous:
        near = find_contenders(row, int(state))
        if near is not None and len(near):
            probs = row[near].astype(np.float64)
            winner: IntArray = near[_first(exponentials(uniforms_of(state, near)) / probs, None, 1, 1)]
            return winner
    positive = row > 0
    num_racing = int(np.count_nonzero(positive))
    places = None if num_racing == len(row) else np.nonzero(positive)[0]  # None: all of them, nothing to look up
    if places is not None and num_racing == 1:
        return places
    finalists: list[tuple[Any, Any, Any]] = []
    for start in range(0, num_racing, _BLOCK):
        stop = min(start + _BLOCK, num_racing)
        tokens = np.arange(start, stop) if places is None else places[start:stop]
        probs = (row[start:stop] if places is None else row[tokens]).astype(np.float64)
        uniforms = uniforms_of(state, tokens)
        if stop - start > _MANY:
            (near,) = _contenders(uniforms / probs, probs, None, 1, count)
            tokens, probs, uniforms = tokens[near], probs[near], uniforms[near]
        finalists.append((tokens, probs, uniforms))
    tokens, probs, uniforms = (np.concatenate(part) for part in zip(*finalists, strict=True))
    return to_numpy(tokens[_first(exponentials(uniforms) / probs, None, 1, count)])


def _first(times: Any, rows: Any, num_rows: int, count: int) -> Any:
    """Places of the first arrivals: one a row, or `count` in the only row."""
    return smallest(times, count) if count > 1 else segment_argmin(times, rows, num_rows)


def _contenders(earliest: Any, probs: Any, rows: Any, num_rows: int, count: int) -> tuple[Any]:
    """Places of the tokens that can still win, found without a logarithm for the others.

    Args:
        earliest: [m] u(x) / p(x): no token arrives before it, since -log(1 - u) is at least u.
        probs: [m] p(x).
        rows: [m] row of each.
        num_rows: number of rows.
        count: how many tokens a row may win.
    """
    xp = namespace(earliest)
    leaders = _first(earliest, rows, num_rows, count)
    times = exponentials(earliest[leaders] * probs[leaders]) / probs[leaders]
    limits = times if count == 1 else xp.reshape(xp.max(times), (1,))  # [num_rows]
    limits = limits * (1 + 1e-9)  # rounding may not exclude a winner
    nearby: tuple[Any] = xp.nonzero(earliest <= (limits if num_rows == 1 else limits[rows]))
    return nearby


@dataclass(frozen=True, slots=True)
class Stream:
    """One request's noise in one round; the `DraftCoins` that serves.

    Attributes:
        seed: the choice's seed (`choice_seed`).
        round: number of the request's judged passes before this one.
    """

    seed: int
    round: int

    def shared(self, law: Any, position: int, count: int) -> IntArray:
        """[<= count] tokens with the best scores under the very noise that MATCH uses at `position`, best first."""
        return race(law[None, :], stream_states(self.seed, Purpose.MATCH, position), count)

    def independent(self, law: Any, parent: int, child: int) -> int:
        """One token of the law [V], for child number `child` of node `parent`."""
        return int(race(law[None, :], self._draft_state(parent, child))[0])

    def without_replacement(self, law: Any, parent: int, count: int) -> IntArray:
        """[<= count] different tokens of the law [V], in draw order: one race, keyed as child 0."""
        return race(law[None, :], self._draft_state(parent, 0), count)

    def _draft_state(self, parent: int, child: int) -> IntArray:
        return stream_states(self.seed, Purpose.DRAFT, self.round, parent, child)


class BatchCoins:
    """The `Coins` that serves: each row is answered from its request's stream."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        """Take the streams of a batch.

        Args:
            streams: [number of requests] in the order of the batch.
        """
        self._seeds = np.asarray([stream.seed for stream in streams], dtype=np.int64)
        self._rounds = np.asarray([stream.round for stream in streams], dtype=np.int64)

    def sample(self, law: Any, at: At) -> IntArray:
        """[k] tokens of laws [k, V], a function of (seed, position) only: the MATCH rule."""
        return race(law, self.match_states(at))

    def match_states(self, at: At) -> IntArray:
        """[k] the streams that `sample` runs its races in."""
        return stream_states(self._seeds[at.request], Purpose.MATCH, at.position)

    def accept(self, prob: Any, at: At) -> Any:
        """[k] booleans: u < prob with u in [0, 1), so 0 is never and 1 always accepted; NaN never."""
        states = like(self._states(Purpose.ACCEPT, at), prob)
        return uniforms_of(states, 0) < prob

    def draw(self, law: Any, at: At) -> IntArray:
        """[k] tokens of laws [k, V], fresh in each round: bonus and residual tokens of the law-exact rules."""
        return race(law, self._states(Purpose.RESIDUAL, at))

    def _states(self, purpose: Purpose, at: At) -> IntArray:
        return stream_states(self._seeds[at.request], purpose, self._rounds[at.request], at.node)


def choice_seed(seed: int, choice: int) -> int:
    """The seed of one of a request's `n` independent outputs; also of the only one, number 0."""
    return int(stream_states(seed, Purpose.CHOICE, choice)[0])


def fresh_seed() -> int:
    """A seed from the operating system, from 0 to 2**63 - 1, for a request that gave none."""
    return secrets.randbits(63)
