"""Whether drafts are worth their rows: the measured price of a row against a request's chance to be right.

Alone a request's draft rows are nearly free, as a pass reads the weights once whatever its width; in a full batch they
are not. The price of a draft token is told in tokens: what a batch that decodes plainly would emit in the time that one
more row takes. A token at depth d is right with the chance p**d, where p is the request's own share of right ones; it
pays while that is above the price. This module knows rows, seconds and counts. Invariants: what was never timed costs
nothing; a request's chance follows from its own outcomes alone; it never makes a draft longer.

Source: the rule is the marginal form of the speed-up of Leviathan et al., 2022, arXiv 2211.17192, section 3.3, for the
rows of a batch instead of a model's cost.
"""

import math

from outrider.core.types import Outcome

__all__ = ["PassCosts", "Thrift"]

_MEMORY = 0.98  # of a pass, after the next one
_LEAST_PASSES = 6.0  # weights of passes, from which a slope is told
_GUESS = 16.0  # rows that cost as much as reading the weights; until a slope is told
_LEAST_SPREAD = 0.05  # of the rows around their mean, as a share of it, that tells a slope
_PRIOR_TRIES, _PRIOR_CHANCE = 2.0, 0.75
_OWN_MEMORY = 0.97  # of a request's tries, after each of its steps: one that has stopped drafting tries again in time


class PassCosts:
    """Seconds of a pass as a straight line over its rows, from the passes of the last while.

    Of the slope half its standard error is taken away, so that a few odd passes stop nobody's drafts. While all passes
    are alike, as when nobody drafts, the last known slope stands.
    """

    def __init__(self) -> None:
        self._a_row: float | None = None
        self._weight = self._rows = self._seconds = self._rows_rows = self._rows_seconds = self._squares = 0.0

    def record(self, rows: int, seconds: float) -> None:
        """Add a pass.

        Args:
            rows: all of its rows.
            seconds: what it took, drafting for it included.
        """
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
            self._a_row = max(0.0, slope - doubt / 2)

    def price(self, num_requests: int) -> float:
        """Tokens that a row costs beside so many requests, from 0 (free, or never timed) to 1 (as a request)."""
        if self._a_row is None:
            return num_requests / (num_requests + _GUESS) if self._weight else 0.0
        in_rows = self._a_row * num_requests
        plain = self._seconds / self._weight + self._a_row * (num_requests - self._rows / self._weight)
        return 1.0 if plain <= in_rows else in_rows / plain


class Thrift:
    """The longest draft that pays, by request."""

    def __init__(self) -> None:
        self.costs = PassCosts()
        self._pass = (0, 0.0)  # rows and seconds
        self._own_rows = 0  # of these, the ones of requests that decode
        self._drafting = 0.0
        self._chances: dict[str, tuple[float, float]] = {}  # right ones and tries, both faded

    def begin_step(self) -> None:
        """The outcomes of the last pass are complete."""
        rows, seconds = self._pass
        if seconds > 0.0 and rows == self._own_rows:  # one that also read prompts says little about draft rows
            self.costs.record(rows, seconds + self._drafting)
        self._pass, self._own_rows, self._drafting = (0, 0.0), 0, 0.0

    def longest(self, request_id: str, num_requests: int) -> int | None:
        """Draft tokens that pay for a request in a pass of so many; None where nothing is against any length."""
        price = self.costs.price(num_requests)
        if price <= 0.0:
            return None
        right, tries = self._chances.get(request_id, (0.0, 0.0))
        chance = (right + _PRIOR_CHANCE * _PRIOR_TRIES) / (tries + _PRIOR_TRIES)
        if chance <= price:
            return 0
        return None if chance >= 1.0 else int(math.log(price) / math.log(chance))

    def update(self, outcome: Outcome) -> None:
        """Take note of one judged pass of a request."""
        self._pass = outcome.pass_rows, outcome.verify_seconds
        self._own_rows += 1 + len(outcome.parents)
        self._drafting += outcome.draft_seconds
        right, tries = self._chances.get(outcome.request_id, (0.0, 0.0))
        num_right = outcome.kept.num_accepted
        right, tries = right * _OWN_MEMORY + num_right, tries * _OWN_MEMORY + num_right + outcome.num_rejected
        self._chances[outcome.request_id] = right, tries

    def forget(self, request_id: str) -> None:
        """Drop what is known of a request."""
        self._chances.pop(request_id, None)
