"""What the answers of an audit prove: claims, each of which holds, fails or was not checked, and one sentence.

This module knows answers as JSON; it runs nothing. Invariants: a claim that was not checked is never counted as one
that holds; an approximate rule is never called lossless.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from outrider.bench.enumeration import ROUNDING
from outrider.core.params import Rule

__all__ = ["Claim", "claims", "verdict"]

_ROUNDING_SHARE = 4.0
"""A text may part where the draw was decided by less than this many times the largest difference of logits."""
_ENOUGH = 0.05
"""Accepted draft tokens a sampled text from which on the law of speculation was tried, and not only the target's."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim.

    Attributes:
        text: what is claimed.
        status: "holds", "fails" or "not checked".
        detail: the figures, or why it was not checked.
    """

    text: str
    status: str
    detail: str

    def as_dict(self) -> dict[str, str]:
        """All of it, ready for JSON."""
        return asdict(self)


def claims(parts: Mapping[str, Mapping[str, Any]], rule: Rule, settings: Mapping[str, Any]) -> list[Claim]:
    """All claims of a certificate.

    Args:
        parts: kind -> name -> answer.
        rule: the rule.
        settings: `temperature`, `is_invariant` and `drafters` of the audit.
    """
    found = [_law_of_rule(parts["rule"], rule), _sees_faults(parts["fault"])]
    if rule is Rule.MATCH or (rule.is_exact and settings["is_greedy"]):
        found.append(_paths(parts, settings))
    else:
        why = "the rule keeps the law, not the path: equal seeds may give other texts"
        if not rule.is_exact:
            why = f"{rule.name} is approximate: it keeps neither the text nor the law"
        found.append(Claim("equal seeds give equal texts with speculation on and off", "not checked", why))
    found.append(_logits(parts["logits"], settings["is_invariant"]))
    if rule.is_exact and rule is not Rule.MATCH and not settings["is_greedy"]:
        found.append(_joint_law(parts["law"]))
    return found


def verdict(found: Sequence[Claim], rule: Rule, *, is_complete: bool) -> tuple[bool | None, str]:
    """Whether the subject is lossless as far as it was checked (None: not known yet), and a sentence."""
    failing = [claim.text for claim in found if claim.status == "fails"]
    if not rule.is_exact:
        return False, f"Not lossless: {rule.name} is an approximate rule; what it emits does not have the target's law."
    if failing:
        return False, f"Not lossless: it fails that {'; and that '.join(failing)}."
    if not is_complete:
        return None, "Unfinished: nothing failed so far, but not everything was checked."
    held = sum(claim.status == "holds" for claim in found)
    return True, f"Lossless as far as it was checked: {held} claims hold, none fails."


def _law_of_rule(answers: Mapping[str, Any], rule: Rule) -> Claim:
    text = f"what rule {rule.name} emits has the target's law, whatever is drafted"
    if not answers:
        return Claim(text, "not checked", "no enumeration was run")
    worst = max(answers, key=lambda name: float(answers[name]["difference"]))
    difference = float(answers[worst]["difference"])
    detail = f"{len(answers)} enumerations of all coins; largest difference of a probability {difference:.2g} ({worst})"
    return Claim(text, "holds" if difference < ROUNDING else "fails", detail)


def _sees_faults(answers: Mapping[str, Any]) -> Claim:
    missed = [name for name, answer in answers.items() if answer["check"] is None]
    text = "the enumeration sees every planted fault"
    if not answers:
        return Claim(text, "not checked", "no fault was planted")
    detail = f"{len(answers) - len(missed)} of {len(answers)} planted faults seen" + (
        f"; missed: {', '.join(missed)}" if missed else ""
    )
    return Claim(text, "fails" if missed else "holds", detail)


def _paths(parts: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]) -> Claim:
    text = "equal seeds give equal texts with speculation on and off"
    runs = [run for group in parts["paths"].values() for run in group]
    if not runs:
        return Claim(text, "not checked", "no prompt was run")
    accepted, tokens = (sum(run[name] for run in runs) for name in ("accepted", "num_tokens"))
    parting = [run for run in runs if run["divergence"] is not None]
    detail = f"{len(runs) - len(parting)} of {len(runs)} texts equal, {tokens} tokens, {accepted} of them drafted"
    if not accepted and not parting:
        return Claim(text, "not checked", f"{detail}: no draft was ever right, so nothing was tried")
    rounding = _ROUNDING_SHARE * largest_logit_difference(parts["logits"]) / (settings["temperature"] or 1.0)
    wrong = [run for run in parting if settings["is_invariant"] or run["divergence"]["decided"] > rounding]
    if not parting:
        return Claim(text, "holds", detail)
    worst = max(run["divergence"]["margin"] for run in parting)
    detail += f"; {len(parting)} part, the largest top-2 margin there is {worst:.3g} logits"
    if wrong:
        return Claim(text, "fails", f"{detail}; rounding cannot explain {len(wrong)} of them")
    return Claim(f"{text}, up to rounding of the logits", "holds", f"{detail}; all within the rounding of the logits")


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def largest_logit_difference(answers: Mapping[str, Any]) -> float:
    """Over all prompts and kinds of passes."""
    return max((value for answer in answers.values() for value in answer.values()), default=0.0)


def _logits(answers: Mapping[str, Any], is_invariant: bool) -> Claim:
    text = "logits of passes that verify are those of plain decoding"
    if not answers:
        return Claim(text, "not checked", "no prompt was compared")
    worst = largest_logit_difference(answers)
    kinds = dict.fromkeys(kind for answer in answers.values() for kind in answer)
    detail = f"largest difference {worst:.3g} over {_count(len(answers), 'text')}: {', '.join(kinds)}"
    if worst == 0.0:
        return Claim(f"{text}, bit for bit", "holds", detail)
    if is_invariant:
        return Claim(f"{text}, bit for bit", "fails", f"{detail}, though the target is in the width-invariant mode")
    return Claim(
        text, "not checked", f"{detail}; this target rounds by the width of a pass, so only the size is stated"
    )


def _joint_law(answers: Mapping[str, Any]) -> Claim:
    text = "the first tokens have the target's law"
    if not answers:
        return Claim(text, "not checked", "no prefix was sampled")
    failing = [name for name, answer in answers.items() if answer["p_value"] < answer["size"]]
    tried = list(answers.values())
    seen = max(answer["smallest_difference"] for answer in tried)
    lowest = min(answer["p_value"] for answer in tried)
    detail = (
        f"{_count(len(tried), 'prefix', 'prefixes')}, {tried[0]['samples']} texts each, smallest p-value {lowest:.3g}; "
        f"a total variation of {seen:.3g} would have been seen with probability {tried[0]['power']:g}"
    )
    drafted, accepted, texts = (sum(answer[name] for answer in tried) for name in ("drafted", "accepted", "samples"))
    detail += f"; {accepted} of {drafted} draft tokens accepted"
    if not failing and accepted < _ENOUGH * texts:
        return Claim(text, "not checked", f"{detail}, too few to have tried more than the target itself")
    return Claim(
        text, "fails" if failing else "holds", detail + (f"; fails at {', '.join(failing)}" if failing else "")
    )
