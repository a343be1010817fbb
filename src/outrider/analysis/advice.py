"""Which drafter and which length to take, from measured acceptance and cost; "do not speculate" is one of the answers.

This module compares numbers; it does not know where they come from. Invariants: the advice is never worse than plain
decoding by its own numbers; what it would cost to be wrong about acceptance is always told with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outrider.analysis.speed import LONGEST, Cost, tau_of
from outrider.errors import InvalidRequestError

__all__ = ["Advice", "Candidate", "Elsewhere", "Option", "advise", "covered_speedup", "covered_tokens"]

_SHIFTS = (-0.2, -0.1, -0.05, 0.05, 0.1)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A drafter as it was measured.

    Attributes:
        name: such as `ngram:max=4`.
        rates: acceptance at each place of a draft, given that the places before were accepted; the last one goes on.
        c: cost of one draft token in plain target passes.
        coverage: share of the steps in which it drafts anything.
    """

    name: str
    rates: tuple[float, ...]
    c: float
    coverage: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what no drafter can be."""
        if not self.rates or not all(0.0 <= rate <= 1.0 for rate in self.rates):
            raise InvalidRequestError(f"acceptance of {self.name} is {list(self.rates)}; give numbers from 0 to 1.")
        if not self.c >= 0.0:
            raise InvalidRequestError(f"draft cost of {self.name} is {self.c!r}; give target passes, 0 or more.")
        if not 0.0 <= self.coverage <= 1.0:
            raise InvalidRequestError(f"coverage of {self.name} is {self.coverage!r}; give a number from 0 to 1.")

    def shifted(self, shift: float) -> "Candidate":
        """The same drafter if every acceptance were higher by `shift`."""
        return replace(self, rates=tuple(min(1.0, max(0.0, rate + shift)) for rate in self.rates))


@dataclass(frozen=True, slots=True)
class Option:
    """A drafter at its best length; length 0 is plain decoding.

    Attributes:
        name: the drafter.
        length: draft tokens a pass.
        speedup: plain time a token over speculative time a token.
        tokens: tokens a pass.
    """

    name: str
    length: int
    speedup: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """How the advice does if acceptance is another than was measured.

    Attributes:
        shift: how much higher every acceptance is.
        speedup: of the advised length.
        best_length: the length that would be right there.
        best_speedup: what it would give.
    """

    shift: float
    speedup: float
    best_length: int
    best_speedup: float


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do.

    Attributes:
        choice: the best option; None says: do not speculate.
        options: every drafter at its own best length.
        elsewhere: the choice at other acceptance rates.
    """

    choice: Option | None
    options: tuple[Option, ...]
    elsewhere: tuple[Elsewhere, ...]


def covered_speedup(candidate: Candidate, gamma: int, cost: Cost, batch: int = 1) -> float:
    """Speed-up of a drafter that proposes nothing in some steps; those steps are plain passes.

    Args:
        candidate: the drafter.
        gamma: draft tokens where it drafts.
        cost: rows of a pass -> what it costs.
        batch: requests that share each pass.

    Source:
        `speed.speedup_at_width`, averaged over the steps with a draft and those without.
    """
    plain, share = cost(batch), candidate.coverage if gamma else 0.0
    if batch == 1:
        passes = share * cost(gamma + 1) + (1 - share) * plain
    else:  # requests of a batch need not draft in the same step: the pass has as many rows as they have on average
        passes = cost(max(1, round(batch * (1 + share * gamma))))
    return covered_tokens(candidate, gamma) * plain / (passes + share * gamma * candidate.c * plain)


def covered_tokens(candidate: Candidate, gamma: int) -> float:
    """Expected tokens a pass of a drafter, the steps without a draft included.

    Args:
        candidate: the drafter.
        gamma: draft tokens where it drafts.

    Source:
        The law of total expectation over Leviathan et al., 2022, arXiv 2211.17192, equation 1.
    """
    return 1.0 + candidate.coverage * (tau_of(candidate.rates, gamma) - 1.0)


def advise(candidates: Sequence[Candidate], cost: Cost, batch: int = 1, longest: int = LONGEST) -> Advice:
    """The best drafter and length.

    Args:
        candidates: the drafters.
        cost: rows of a pass -> what it costs.
        batch: requests that share each pass.
        longest: draft tokens a pass at most.

    Source:
        Leviathan et al., 2022, arXiv 2211.17192, section 3.5: all lengths are tried.
    """
    options = [_best(candidate, cost, batch, longest) for candidate in candidates]
    if not options:
        raise InvalidRequestError("no drafter is given; give the acceptance and cost of at least one.")
    number = max(range(len(options)), key=lambda i: options[i].speedup)
    choice = options[number] if options[number].length else None
    elsewhere = () if choice is None else tuple(_elsewhere(candidates[number], choice, cost, batch, longest))
    return Advice(choice, tuple(options), elsewhere)


def _best(candidate: Candidate, cost: Cost, batch: int, longest: int) -> Option:
    speedups = [covered_speedup(candidate, gamma, cost, batch) for gamma in range(longest + 1)]
    length = max(range(longest + 1), key=speedups.__getitem__)
    if speedups[length] <= 1.0:
        return Option(candidate.name, 0, 1.0, 1.0)
    return Option(candidate.name, length, speedups[length], covered_tokens(candidate, length))


def _elsewhere(candidate: Candidate, choice: Option, cost: Cost, batch: int, longest: int) -> list[Elsewhere]:
    rows = []
    for shift in _SHIFTS:
        other = candidate.shifted(shift)
        best = _best(other, cost, batch, longest)
        rows.append(Elsewhere(shift, covered_speedup(other, choice.length, cost, batch), best.length, best.speedup))
    return rows
