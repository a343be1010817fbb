"""Counters of speculation: only sums are stored, every rate is derived.

This module knows numbers only. Invariant: `drafted = accepted + rejected + discarded`, and two `SpecStats` add up
field by field, so that any grouping (request, drafter, run) gives the same totals. The words are those of
`docs/notation.md`.
"""

from collections import Counter
from dataclasses import dataclass, field, fields

import numpy as np

from outrider.core.tree import depths
from outrider.core.types import Outcome

__all__ = ["SpecStats"]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


@dataclass(slots=True)
class SpecStats:
    """Sums over judged passes.

    Attributes:
        steps: judged passes of a request.
        drafted_steps: of these, the ones that verified at least one draft token.
        zero_accept_steps: drafted steps in which no draft token was accepted.
        drafted: draft tokens verified.
        accepted: of these, emitted.
        discarded: accepted, but cut away by a stop or limit.
        rejections: steps in which a draft token was tried and refused.
        emitted: tokens emitted.
        rows: rows that the requests had in these passes, last prompt chunks included.
        draft_seconds: time spent drafting.
        verify_seconds: time spent in target passes; of a shared pass the share by rows.
        attempts_at: depth -> how often a draft token was tried at that depth (from 0).
        accepts_at: depth -> how often one was accepted there.
        accepted_by: drafter -> emitted draft tokens.
        drafted_by: drafter -> verified draft tokens.
        lengths: number of accepted tokens -> drafted steps with it.
    """

    steps: int = 0
    drafted_steps: int = 0
    zero_accept_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    discarded: int = 0
    rejections: int = 0
    emitted: int = 0
    rows: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    attempts_at: Counter[int] = field(default_factory=Counter)
    accepts_at: Counter[int] = field(default_factory=Counter)
    accepted_by: Counter[str] = field(default_factory=Counter)
    drafted_by: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)

    def record(self, outcome: Outcome) -> None:
        """Add one judged pass."""
        kept = outcome.kept
        self.steps += 1
        self.emitted += len(kept.tokens)
        self.rows += outcome.rows
        self.draft_seconds += outcome.draft_seconds
        self.verify_seconds += outcome.verify_seconds * outcome.rows / outcome.pass_rows
        if len(outcome.parents):
            self._record_draft(outcome)

    def _record_draft(self, outcome: Outcome) -> None:
        num_accepted = outcome.kept.num_accepted
        self.drafted_steps += 1
        self.zero_accept_steps += num_accepted == 0
        self.drafted += len(outcome.parents)
        self.accepted += num_accepted
        self.discarded += int(outcome.accepted.sum()) - num_accepted
        self.rejections += outcome.num_rejected
        self.lengths[num_accepted] += 1
        for depth in range(num_accepted):
            self.accepts_at[depth] += 1
        for depth in range(num_accepted + outcome.num_rejected):
            self.attempts_at[depth] += 1
        self.drafted_by.update(outcome.source)
        nodes = np.flatnonzero(outcome.accepted)
        if len(nodes):
            levels = depths(outcome.parents)
            self.accepted_by.update(outcome.source[node] for node in nodes if levels[node] <= num_accepted)

    def __add__(self, other: "SpecStats") -> "SpecStats":
        """Sums of both."""
        return SpecStats(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    @property
    def rejected(self) -> int:
        """Draft tokens that were verified in vain: refused, or behind a refused one."""
        return self.drafted - self.accepted - self.discarded

    @property
    def acceptance_rate(self) -> float:
        """Accepted / (accepted + rejections): conditional, does not depend on the draft length."""
        return _ratio(self.accepted, self.accepted + self.rejections)

    def acceptance_rate_at(self, depth: int) -> float:
        """Accepts / attempts at one depth of the draft, from 0."""
        return _ratio(self.accepts_at[depth], self.attempts_at[depth])

    @property
    def accepted_fraction(self) -> float:
        """Accepted / drafted; what others call acceptance rate; falls with the length."""
        return _ratio(self.accepted, self.drafted)

    @property
    def mean_accepted_length(self) -> float:
        """Accepted tokens per step that drafted."""
        return _ratio(self.accepted, self.drafted_steps)

    @property
    def zero_accept_fraction(self) -> float:
        """Share of the steps that drafted in which nothing was accepted."""
        return _ratio(self.zero_accept_steps, self.drafted_steps)

    @property
    def block_efficiency(self) -> float:
        """Emitted tokens per target pass, the residual or bonus token included; plain decoding is 1."""
        return _ratio(self.emitted, self.steps)

    @property
    def coverage(self) -> float:
        """Share of the steps that drafted."""
        return _ratio(self.drafted_steps, self.steps)

    def as_dict(self) -> dict[str, object]:
        """Sums and rates, ready for JSON."""
        sums = {f.name: getattr(self, f.name) for f in fields(self)}
        plain = {name: dict(value) if isinstance(value, Counter) else value for name, value in sums.items()}
        rates = (
            "rejected",
            "acceptance_rate",
            "accepted_fraction",
            "mean_accepted_length",
            "zero_accept_fraction",
            "block_efficiency",
            "coverage",
        )
        return plain | {name: getattr(self, name) for name in rates}
