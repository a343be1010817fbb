"""Whether drafts are worth their rows: the measured price of a row against a request's chance to be right, and a stake.

Alone a request's draft rows are nearly free, as a pass reads the weights once whatever its width; in a full batch they
are not. The price of a draft token is told in tokens: what a batch that decodes plainly would emit in the time that one
more row takes. A token at depth d is right with the chance p**d, where p is the request's own share of right ones; it
pays while that is above the price.

A chance is a guess about texts that change, and a price one about passes whose cost has steps, so all requests share a
stake: the rows of a pass may cost no more than it, what drafts gained is paid in, what their pass took longer than one
without them is paid out, and a small share of every token is added. However wrong the guesses are, drafting therefore
loses little of what plain decoding would have given. One pass without drafts comes first for each number of requests.

This module knows rows, seconds and counts. Invariants: what was never timed costs nothing; a request's chance follows
from its own outcomes alone; it never makes a draft longer; it looks at MATCH only, where no text depends on lengths.

Source: the rule is the marginal form of the speed-up of Leviathan et al., 2022, arXiv 2211.17192, section 3.3, for the
rows of a batch instead of a model's cost.
"""

import math
from collections.abc import Sequence

import numpy as np

from outrider.core.params import Rule
from outrider.core.tree import depths
from outrider.core.types import IntArray, Outcome
from outrider.policies.base import RequestView, Shape
from outrider.policies.fixed import admit_all

__all__ = ["PassCosts", "Thrift"]

_MEMORY = 0.98  # of a pass, after the next one
_LEAST_PASSES = 6.0  # weights of passes, from which a slope is told
_GUESS = 16.0  # rows that cost as much as reading the weights; until a slope is told
_LEAST_SPREAD = 0.05  # of the rows around their mean, as a share of it, that tells a slope
_PLAIN_PASSES = 8.0  # over which the seconds of passes without drafts are averaged
_DISTURBED = 2.0  # times what a pass's rows explain; what it took beyond that is the machine's doing
_PRIOR_TRIES, _PRIOR_CHANCE = 2.0, 0.75
_OWN_MEMORY = 0.97  # of a request's tries, after each of its steps: one that has stopped drafting tries again in time
_START = 2.0  # tokens that may be lost before anything was gained
_SHARE = 0.02  # of the tokens that come anyway, which may be lost to drafts
_MOST = 4.0  # tokens a request, from which on gains are not staked again


class PassCosts:
    """Seconds of a pass as a straight line over its rows, from the passes of the last while.

    Of the slope half its standard error is taken away, so that a few odd passes stop nobody's drafts, or added where it
    is asked what may be spent. While all passes are alike, as when nobody drafts, the last known slope stands.
    """

    def __init__(self) -> None:
        self._a_row: tuple[float, float] | None = None  # what a row takes, at least and at most
        self._plain: dict[int, float] = {}  # rows -> faded seconds of passes without drafts
        self._weight = self._rows = self._seconds = self._rows_rows = self._rows_seconds = self._squares = 0.0

    def record(self, rows: int, seconds: float, num_drafted: int = 0) -> float:
        """Add a pass.

        Args:
            rows: all of its rows.
            seconds: what it took, drafting for it included.
            num_drafted: of its rows, the draft tokens.

        Returns:
            What the draft tokens cost, in tokens that plain decoding would have given in that time; by their price
            where no pass of as many requests without drafts was timed.
        """
        if self._weight:
            explained = self._seconds / self._weight * max(1.0, rows * self._weight / self._rows)
            seconds = min(seconds, _DISTURBED * explained)
        self._add(rows, seconds)
        if not num_drafted:
            before = self._plain.get(rows, seconds)
            self._plain[rows] = before + (seconds - before) / _PLAIN_PASSES
            return 0.0
        num_plain = rows - num_drafted
        plain = self._plain.get(num_plain)
        return num_drafted * self.price(num_plain) if plain is None else num_plain * (seconds - plain) / plain

    def _add(self, rows: int, seconds: float) -> None:
        for name, value in (
            ("_weight", 1.0),
            ("_rows", rows),
            ("_seconds", seconds),
            ("_rows_rows", rows * rows),
            ("_rows_seconds", rows * seconds),
            ("_squares", seconds * seconds),
        ):
            setattr(self, name, _MEMORY * getattr(self, name) + value)
        mean, mean_seconds = self._rows / self._weight, self._seconds / self._weight
        spread = self._rows_rows / self._weight - mean**2
        if self._weight >= _LEAST_PASSES and spread > (_LEAST_SPREAD * mean) ** 2:
            slope = (self._rows_seconds / self._weight - mean * mean_seconds) / spread
            unexplained = max(0.0, self._squares / self._weight - mean_seconds**2 - slope**2 * spread)
            doubt = math.sqrt(unexplained / spread / self._weight)  # standard error of the slope
            self._a_row = max(0.0, slope - doubt / 2), max(0.0, slope + doubt / 2)

    def knows(self, num_requests: int) -> bool:
        """Whether a pass of so many requests without drafts was timed."""
        return num_requests in self._plain

    def price(self, num_requests: int, *, at_most: bool = False) -> float:
        """Tokens that a row costs beside so many requests, from 0 (free, or never timed) to 1 (as a request)."""
        if self._a_row is None:
            return num_requests / (num_requests + _GUESS) if self._weight else 0.0
        a_row = self._a_row[at_most]
        in_rows = a_row * num_requests
        plain = self._seconds / self._weight + a_row * (num_requests - self._rows / self._weight)
        return 1.0 if plain <= in_rows else in_rows / plain


class Thrift:
    """The longest draft that pays, by request, and the rows that all of them may stake."""

    def __init__(self) -> None:
        self.costs = PassCosts()
        self._pass = (0, 0.0)  # rows and seconds
        self._judged = self._drafted = self._gained = self._limited = 0  # requests, draft rows; right and limited ones
        self._drafting = 0.0
        self._price = self._dearest = 0.0  # of a row in the next pass: probably, and at most
        self._stake = _START
        self._has_clock, self._is_waiting = False, False
        self._priced: set[str] = set()  # the requests of the next pass that it looks at
        self._chances: dict[str, tuple[float, float]] = {}  # right ones and tries, both faded

    def begin_step(self, views: Sequence[RequestView]) -> None:
        """The outcomes of the last pass are complete; the next one is for these requests."""
        self._settle()
        self._price, self._dearest = self.costs.price(len(views)), self.costs.price(len(views), at_most=True)
        self._is_waiting = self._has_clock and not self.costs.knows(len(views))  # one pass, to compare others with
        self._priced = {view.request_id for view in views if view.rule is Rule.MATCH}

    def _settle(self) -> None:
        """Take the last pass into account."""
        rows, seconds = self._pass
        self._has_clock |= seconds > 0.0
        cost = self._price * self._drafted
        if seconds > 0.0 and rows == self._judged + self._drafted:  # one that also read prompts says little
            cost = self.costs.record(rows, seconds + self._drafting, self._drafted)
        if self._limited:
            self._stake += self._gained - cost * self._limited / self._drafted
        self._stake = min(self._stake + _SHARE * self._judged, max(_START, _MOST * len(self._priced)))
        self._pass, self._drafting = (0, 0.0), 0.0
        self._judged = self._drafted = self._gained = self._limited = 0

    @property
    def num_rows(self) -> int | None:
        """Draft rows that the next pass may have at most; None where they cost nothing."""
        if self._is_waiting:
            return 0
        return None if self._dearest <= 0.0 else max(0, int(self._stake / self._dearest))

    def longest(self, request_id: str) -> int | None:
        """Draft tokens that pay for a request in the next pass; None where nothing is against any length."""
        affordable = self.num_rows
        if affordable is None or request_id not in self._priced:
            return None
        chance = self._chance(request_id)
        if affordable == 0 or chance <= self._price:
            return 0
        if chance >= 1.0 or self._price <= 0.0:
            return affordable
        return min(affordable, int(math.log(self._price) / math.log(chance)))

    def admit(self, shapes: Sequence[Shape], views: Sequence[RequestView]) -> list[IntArray]:
        """[requests] the nodes of each proposal that are verified: the likeliest, as far as the stake goes."""
        limit = self.num_rows
        numbers = [number for number, view in enumerate(views) if view.request_id in self._priced]
        if limit is None or sum(len(shapes[number].parents) for number in numbers) <= limit:
            return admit_all(shapes)
        nodes = []
        for number in numbers:
            chance = self._chance(views[number].request_id)
            levels = depths(shapes[number].parents).tolist()
            nodes += [(-(chance**depth), depth, number, node) for node, depth in enumerate(levels)]
        kept: list[list[int]] = [[] for _ in shapes]
        for _, _, number, node in sorted(nodes)[:limit]:
            kept[number].append(node)
        admitted = admit_all(shapes)
        for number in numbers:
            admitted[number] = np.asarray(sorted(kept[number]), dtype=np.int64)
        return admitted

    def update(self, outcome: Outcome) -> None:
        """Take note of one judged pass of a request."""
        self._pass = outcome.pass_rows, outcome.verify_seconds
        num_drafted, num_right = len(outcome.parents), outcome.kept.num_accepted
        self._judged += 1
        self._drafted += num_drafted
        self._drafting += outcome.draft_seconds
        if outcome.request_id in self._priced:
            self._limited += num_drafted
            self._gained += num_right
        right, tries = self._chances.get(outcome.request_id, (0.0, 0.0))
        right, tries = right * _OWN_MEMORY + num_right, tries * _OWN_MEMORY + num_right + outcome.num_rejected
        self._chances[outcome.request_id] = right, tries

    def forget(self, request_id: str) -> None:
        """Drop what is known of a request."""
        self._chances.pop(request_id, None)

    def _chance(self, request_id: str) -> float:
        right, tries = self._chances.get(request_id, (0.0, 0.0))
        return (right + _PRIOR_CHANCE * _PRIOR_TRIES) / (tries + _PRIOR_TRIES)
