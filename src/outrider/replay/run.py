"""Play records under a setup and sum up what speculation did, task by task.

This module knows results; it prints nothing. Invariant: sums of tasks give the sums of the whole.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from outrider.analysis.cost import CostCurve
from outrider.core.types import Outcome
from outrider.engine.stats import SpecStats
from outrider.policies.base import Policy
from outrider.replay.common import common_places
from outrider.replay.engine import ReplayEngine
from outrider.replay.records import TextRecord
from outrider.replay.setups import Setup

__all__ = ["Result", "Sums", "replay"]


@dataclass(frozen=True, slots=True)
class Sums:
    """What came of some texts.

    Attributes:
        stats: the engine's own counters.
        texts: number of texts.
        plain_seconds: predicted decode time without speculation; 0 without a cost curve.
        speculative_seconds: predicted decode time with it: passes by the curve, drafting as measured here.
        foretold: output tokens in blocks of three or more that the predictions have too; 0 without predictions.
        foretold_accepted: of these, accepted draft tokens.
    """

    stats: SpecStats = field(default_factory=SpecStats)
    texts: int = 0
    plain_seconds: float = 0.0
    speculative_seconds: float = 0.0
    foretold: int = 0
    foretold_accepted: int = 0

    def __add__(self, other: "Sums") -> "Sums":
        """Sums of both."""
        pairs = ((getattr(self, part.name), getattr(other, part.name)) for part in fields(self))
        return Sums(*(mine + yours for mine, yours in pairs))

    @property
    def wasted_rows(self) -> float:
        """Draft rows a pass that gave no token."""
        return (self.stats.drafted - self.stats.accepted) / self.stats.steps if self.stats.steps else 0.0

    @property
    def draft_microseconds(self) -> float:
        """Time spent proposing, a step."""
        return 1e6 * self.stats.draft_seconds / self.stats.steps if self.stats.steps else 0.0

    @property
    def predicted_speedup(self) -> float | None:
        """Plain over speculative seconds as the cost curve predicts them; None without one."""
        return self.plain_seconds / self.speculative_seconds if self.speculative_seconds else None

    @property
    def prediction_share(self) -> float | None:
        """Share of the foretold tokens that were accepted draft tokens; None where nothing was foretold."""
        return self.foretold_accepted / self.foretold if self.foretold else None

    @property
    def acceptance_at(self) -> list[float]:
        """Acceptance rate at each position of the draft."""
        return [self.stats.acceptance_rate_at(depth) for depth in range(max(self.stats.attempts_at, default=-1) + 1)]

    def as_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        rates = ("texts", "wasted_rows", "draft_microseconds", "predicted_speedup", "acceptance_at", "prediction_share")
        return {**self.stats.as_dict(), **{name: getattr(self, name) for name in rates}}


@dataclass(frozen=True, slots=True)
class Result:
    """What one setup gave.

    Attributes:
        setup: the setup.
        tasks: task -> its sums.
        failures: drafter -> calls in which it failed and lost its turn.
    """

    setup: Setup
    tasks: Mapping[str, Sums]
    failures: Mapping[str, int]

    @property
    def total(self) -> Sums:
        """Sums over all tasks."""
        return sum(self.tasks.values(), Sums())

    def as_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {
            "drafters": list(self.setup.drafters),
            "policy": self.setup.policy,
            "length": self.setup.length,
            "tree": None if self.setup.tree is None else [self.setup.tree.width, self.setup.tree.nodes],
            "all": self.total.as_dict(),
            "tasks": {task: sums.as_dict() for task, sums in self.tasks.items()},
            "failures": dict(self.failures),
        }


class _Priced:
    """A policy whose passes are priced on the way."""

    def __init__(self, policy: Policy, cost: CostCurve) -> None:
        self._policy, self._cost = policy, cost
        self.choose, self.admit, self.forget = policy.choose, policy.admit, policy.forget
        self.plain_seconds = self.speculative_seconds = 0.0

    def update(self, outcome: Outcome) -> None:
        """Price a step: as one pass with its draft, and as one plain pass a token."""
        price, before = self._cost.seconds, outcome.context_length
        self.speculative_seconds += price(1 + len(outcome.parents), before) + outcome.draft_seconds
        self.plain_seconds += sum(price(1, before + number) for number in range(len(outcome.kept.tokens)))
        self._policy.update(outcome)


def replay(
    records: Sequence[TextRecord],
    setup: Setup,
    *,
    cost: CostCurve | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Result:
    """Play records, one after the other in their order, with drafters and a policy that begin anew.

    Args:
        records: the texts, at least one, of one vocabulary.
        setup: how to speculate.
        cost: what a pass of the target takes. Policies learn it as they do when serving, from the seconds of each
            pass; without a curve these are 0.
        tick: called after each text.

    Raises:
        UnsupportedError: a drafter needs what the records do not hold.
    """
    drafters, policy = setup.build()
    priced = None if cost is None else _Priced(policy, cost)
    engine = ReplayEngine(records, drafters, priced or policy, cost)
    tasks: dict[str, Sums] = {}
    for record in records:
        before = (priced.plain_seconds, priced.speculative_seconds) if priced else (0.0, 0.0)
        played = engine.play(record, setup.length)
        after = (priced.plain_seconds, priced.speculative_seconds) if priced else (0.0, 0.0)
        foretold = common_places(record.prediction or (), record.output)
        hits = foretold.intersection(played.accepted_at)
        spent = (after[0] - before[0], after[1] - before[1])
        sums = Sums(played.request.stats, 1, *spent, len(foretold), len(hits))
        tasks[record.task] = tasks.get(record.task, Sums()) + sums
        tick()
    return Result(setup, tasks, engine.drafters.num_failures)
