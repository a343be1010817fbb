"""Whether drafts are worth their rows: the measured price of a row against a request's chance to be right.

Alone a request's draft rows are nearly free, as a pass reads the weights once whatever its width; in a full batch they
are not. The price of a draft token is told in tokens: what a batch that decodes plainly would emit in the time that one
more row takes. A token at depth d is right with the chance p**d, where p is the request's own share of right ones; it
pays while that is above the price. This module knows rows, seconds and counts. Invariants: what is unknown costs
nothing; a request's chance follows from its own outcomes alone; it never makes a draft longer.

Source: the rule is the marginal form of the speed-up of Leviathan et al., 2022, arXiv 2211.17192, section 3.3, for the
rows of a batch instead of a model's cost.
"""

import math

from outrider.core.types import Outcome

__all__ = ["PassCosts", "Thrift"]

_MEMORY = 0.98  # of a pass, after the next one
_LEAST_PASSES = 8.0  # weights of passes, from which a price is told
_PRIOR_TRIES, _PRIOR_CHANCE = 2.0, 0.75
_OWN_MEMORY = 0.97  # of a request's tries, after each of its steps: one that has stopped drafting tries again in time


class PassCosts:
    """Seconds of a pass as a straight line over its rows, from the passes of the last while."""

    def __init__(self) -> None:
        self._weight = self._rows = self._seconds = self._rows_rows = self._rows_seconds = 0.0

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
        ):
            setattr(self, name, _MEMORY * getattr(self, name) + value)

    def price(self, num_requests: int) -> float:
        """Tokens that a row costs beside so many requests, from 0 (free, or unknown) to 1 (as much as a request)."""
        if self._weight < _LEAST_PASSES:
            return 0.0
        mean_rows, mean_seconds = self._rows / self._weight, self._seconds / self._weight
        spread = self._rows_rows / self._weight - mean_rows**2
        if spread < 1e-3 * mean_rows**2:
            return 0.0  # all passes were alike
        a_row = max(0.0, (self._rows_seconds / self._weight - mean_rows * mean_seconds) / spread)
        plain = mean_seconds + a_row * (num_requests - mean_rows)
        return 1.0 if plain <= a_row * num_requests else a_row * num_requests / plain


class Thrift:
    """The longest draft that pays, by request."""

    def __init__(self) -> None:
        self.costs = PassCosts()
        self._pass: tuple[int, float] | None = None
        self._drafting = 0.0
        self._chances: dict[str, tuple[float, float]] = {}  # right ones and tries, both faded

    def begin_step(self) -> None:
        """The outcomes of the last pass are complete."""
        if self._pass is not None:
            rows, seconds = self._pass
            self.costs.record(rows, seconds + self._drafting)
        self._pass, self._drafting = None, 0.0

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
        if outcome.verify_seconds > 0.0:
            self._pass = outcome.pass_rows, outcome.verify_seconds
            self._drafting += outcome.draft_seconds
        right, tries = self._chances.get(outcome.request_id, (0.0, 0.0))
        num_right = outcome.kept.num_accepted
        right, tries = right * _OWN_MEMORY + num_right, tries * _OWN_MEMORY + num_right + outcome.num_rejected
        self._chances[outcome.request_id] = right, tries

    def forget(self, request_id: str) -> None:
        """Drop what is known of a request."""
        self._chances.pop(request_id, None)
