"""The view of exactness: rounds of the real verifier on eight tokens, beside the target's law and the closed forms.

Everything is asked of `analysis`; the rules are those of `core`. Invariant: the verdict "they match" is a test with a
stated error, never a look at the bars.
"""

from typing import Any

from outrider.analysis.agreement import Agreement, compare_laws
from outrider.analysis.estimate import mean_of_counts, share
from outrider.analysis.expected import expected_pass
from outrider.analysis.faults import FAULTS, HONEST, Fault
from outrider.analysis.simulate import Rounds, Toy, simulate, toy_laws
from outrider.core.fit import default_draw
from outrider.core.params import Draw, Rule
from outrider.core.steps import STEPS
from outrider.errors import InvalidRequestError

__all__ = ["LETTERS", "exactness", "faults_of", "find_fault", "law_rows", "make_toy"]

LETTERS = "ABCDEFGH"
_LEVEL = 0.999

_SEEN_BY = {
    Rule.MATCH: ("match_child", "sample"),
    Rule.TOKEN: ("acceptance", "residual"),
    Rule.BLOCK: ("acceptance", "block_length", "weight", "block_chance"),
    Rule.TRAVERSAL: ("acceptance", "weight", "block_chance"),
    Rule.TYPICAL: (),
}
"""Rule -> steps that it takes for a chain and whose replacement a few thousand rounds show.

The block rule's own residual is left out: a wrong one moves the emitted tokens of these laws by less than that.
"""


def faults_of(rule: Rule) -> list[Fault]:
    """Planted faults that replace a step which the rule takes."""
    return [fault for fault in FAULTS if fault.where == "verify" and any(_replaces(fault, s) for s in _SEEN_BY[rule])]


def _replaces(fault: Fault, step: str) -> bool:
    return getattr(fault.steps, step) is not getattr(STEPS, step)


def find_fault(rule: Rule, name: str) -> Fault:
    """A planted fault by its name; an empty name is the shipped code.

    Raises:
        InvalidRequestError: the rule takes no step that such a fault replaces.
    """
    known = {fault.name: fault for fault in faults_of(rule)}
    if not name:
        return HONEST
    if name not in known:
        raise InvalidRequestError(
            f"fault is {name!r}, which the rule {rule.value} does not have; choose one of {', '.join(known) or 'none'}."
        )
    return known[name]


def make_toy(rule: Rule, mismatch: float, widths: tuple[int, ...], fault: str = "", draw: Draw | None = None) -> Toy:
    """The simulated target, draft and rule.

    Args:
        rule: how drafts are judged.
        mismatch: how far the draft's law is from the target's, from 0 to 1.
        widths: children of a node at each depth.
        fault: name of a planted fault; empty for the shipped code.
        draw: how the draft is drawn; None follows the rule.
    """
    p, q = toy_laws(mismatch)
    kind = default_draw(rule, is_tree=max(widths) > 1) if draw is None else draw
    return Toy(p, q, rule, kind, widths, find_fault(rule, fault).steps)


def exactness(toy: Toy, rounds: int, seed: int) -> dict[str, Any]:
    """Numbers, rows of the plots and the verdict.

    Args:
        toy: what is simulated.
        rounds: how many rounds.
        seed: the rounds are a function of it.
    """
    measured = simulate(toy, rounds, seed)
    agreement = compare_laws(measured.emitted, toy.p)
    expected = expected_pass(toy.p, toy.q, toy.rule, toy.draw, toy.widths)
    tokens = mean_of_counts(dict(enumerate(measured.histogram)), _LEVEL)
    rate = share(measured.accepted, measured.accepted + measured.rejections, _LEVEL)
    numbers = {
        "rounds": rounds,
        "acceptance": measured.acceptance_rate,
        "acceptance_low": rate.low,
        "acceptance_high": rate.high,
        "acceptance_expected": None if expected is None else expected.acceptance_rate,
        "tokens": measured.tokens_a_pass,
        "tokens_low": 1 + tokens.low,
        "tokens_high": 1 + tokens.high,
        "tokens_expected": None if expected is None else expected.tokens,
        "distance": agreement.distance,
        "p_value": agreement.p_value,
        "matches": agreement.matches,
        "draw": toy.draw.name.lower(),
        "is_exact": toy.rule.is_exact,
    }
    rows = {"laws": law_rows(toy, measured), "accepted": _accepted(measured, expected, rounds)}
    return {"numbers": numbers, "rows": rows, "words": _words(agreement, int(measured.emitted.sum()), toy.rule)}


def _words(agreement: Agreement, tokens: int, rule: Rule) -> str:
    """What the test says."""
    if not rule.is_exact:
        return f"{rule.value} is approximate. {_compared(agreement, tokens)}"
    return _compared(agreement, tokens)


def _compared(agreement: Agreement, tokens: int) -> str:
    found = f"{tokens:,} tokens lie {agreement.distance:.4f} from the target's law"
    if agreement.matches:
        return (
            f"They match: {found}, and chance alone gives as much in {100 * agreement.p_value:.0f} of 100 simulations."
        )
    return f"They do not match: {found}, which chance alone gives less than once in 1,000 simulations."


def law_rows(toy: Toy, measured: Rounds) -> list[dict[str, Any]]:
    """Rows of the plot of the laws: target, emitted with its interval, draft, token by token."""
    rows: list[dict[str, Any]] = []
    agreement = compare_laws(measured.emitted, toy.p)
    total = int(measured.emitted.sum())
    for token, letter in enumerate(LETTERS):
        interval = share(int(measured.emitted[token]), total, agreement.level)
        rows.append({"token": letter, "kind": "target", "probability": float(toy.p[token])})
        seen = {"probability": interval.value, "low": interval.low, "high": interval.high}
        rows.append({"token": letter, "kind": "emitted", **seen})
        rows.append({"token": letter, "kind": "draft", "probability": float(toy.q[token])})
    return rows


def _accepted(measured: Rounds, expected: Any, rounds: int) -> list[dict[str, Any]]:
    shares = [None] * (measured.depth + 1) if expected is None else expected.lengths
    return [
        {"accepted": length, "measured": count / rounds, "expected": shares[length]}
        for length, count in enumerate(measured.histogram)
    ]
