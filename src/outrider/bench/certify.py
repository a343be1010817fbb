"""The audit of one rule, drafter and pair of models, a part at a time.

Parts are: each enumeration of the rule on toys, each planted fault, groups of prompts with speculation on and off,
prompts whose logits are compared between kinds of passes, and prefixes at which the law of the first tokens is tested.
This module runs parts; what they prove stands in `verdict`. Invariant: a part's answer depends on the settings alone,
so that an audit that was broken off goes on where it stopped and ends as if it had not been.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outrider.analysis.faults import FAULTS, HONEST, Fault
from outrider.bench.enumeration import Check, all_checks, cheapest_first, run_check
from outrider.bench.joint_law import chi_square, exact_cells, sample_texts, smallest_difference
from outrider.bench.journal import Journal
from outrider.bench.paths import compare_paths, logit_differences, seeded
from outrider.core.params import Rule, SamplingParams, Speculation
from outrider.engine.engine import Engine

__all__ = ["FIRST_TOKENS", "SIZE", "Ledger", "Subject", "parts"]

FIRST_TOKENS = 3
"""The law of so many tokens behind a prefix is tested."""
SIZE = 1e-3
"""Probability with which the tests of an exact engine fail, over all prefixes."""

_TOGETHER = 4
_WHOLE_DRAFT = FIRST_TOKENS + 64
"""Texts whose first tokens are looked at may be so long: near its end a text is drafted less for."""
_LOGIT_PROMPTS, _LOGIT_ROWS = 4, 64
_SEEN = 1e-6
"""A fault is seen where it moves a probability by more than this."""

Part = tuple[str, str, Callable[[], Any]]
"""Kind, name, and what gives the answer."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is audited.

    Attributes:
        on: the engine with the drafters and the policy.
        off: one without drafters around the same target.
        speculation: rule, length and tree.
        params: how tokens are drawn; the seed is that of the first prompt.
        prompts: (name, token ids).
        samples: texts at each prefix whose law is tested.
        prefixes: number of prefixes, each a prompt with the text up to the first draft token that was accepted.
        power: probability with which a difference of the stated size would be seen.
    """

    on: Engine
    off: Engine
    speculation: Speculation
    params: SamplingParams
    prompts: Sequence[tuple[str, Sequence[int]]]
    samples: int
    prefixes: int
    power: float

    @property
    def has_paths(self) -> bool:
        """Whether the same seed has to give the same text: MATCH, and every exact rule where decoding is greedy."""
        rule = self.speculation.rule
        return rule is Rule.MATCH or (rule.is_exact and self.params.is_greedy)

    @property
    def has_law(self) -> bool:
        """Whether there is a law to test by sampling."""
        return self.speculation.rule.is_exact and not self.has_paths


def parts(subject: Subject, done: Mapping[str, Mapping[str, Any]]) -> Iterator[Part]:
    """All parts in order, those that are done included.

    Args:
        subject: what is audited.
        done: kind -> name -> answer, of the parts that exist; later parts may need earlier answers.
    """
    rule = subject.speculation.rule
    for check in all_checks(rule, subject.params):
        yield "rule", str(check), lambda check=check: {"difference": run_check(check, HONEST)}  # type: ignore[misc]
    checks = cheapest_first(check for other in Rule if other.is_exact for check in all_checks(other))
    for fault in FAULTS:
        yield "fault", fault.name, lambda fault=fault: _look_for(fault, checks)  # type: ignore[misc]
    yield from _model_parts(subject, done)


def _look_for(fault: Fault, checks: Sequence[Check]) -> dict[str, Any]:
    """The first check that sees a fault."""
    for check in checks:
        difference = run_check(check, fault)
        if difference > _SEEN and (difference < float("inf") or fault.where == "coins"):
            shown = difference if difference < float("inf") else None
            return {"known": fault.known, "where": fault.where, "check": str(check), "difference": shown}
    return {"known": fault.known, "where": fault.where, "check": None, "difference": None}


def _model_parts(subject: Subject, done: Mapping[str, Mapping[str, Any]]) -> Iterator[Part]:
    numbers = range(len(subject.prompts))
    for first in range(0, len(numbers), _TOGETHER):
        group = numbers[first : first + _TOGETHER]
        yield "paths", _group_name(subject, first), lambda group=group: _paths(subject, group)  # type: ignore[misc]
    for number in numbers[:_LOGIT_PROMPTS]:
        name, prompt = subject.prompts[number]
        group = done["paths"][_group_name(subject, number)]
        text = [*prompt, *group[number % _TOGETHER]["tokens"]][: len(prompt) + _LOGIT_ROWS]
        yield (
            "logits",
            name,
            lambda text=text, n=number, p=prompt: logit_differences(  # type: ignore[misc]
                subject.off.target, text, len(p) - 1, n
            ),
        )
    for name, prefix in _prefixes(subject, done) if subject.has_law else ():
        yield "law", name, lambda prefix=prefix: _law(subject, prefix)  # type: ignore[misc]


def _prefixes(subject: Subject, done: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Sequence[int]]]:
    """Names and tokens of the prefixes: first those of the prompts where a draft token was accepted."""
    found: list[tuple[str, Sequence[int]]] = []
    without: list[tuple[str, Sequence[int]]] = []
    for number, (name, prompt) in enumerate(subject.prompts):
        before = done["paths"][_group_name(subject, number)][number % _TOGETHER]["before_draft"]
        if before is None:
            without.append((name, prompt))
        else:
            found.append((f"{name} and {len(before)} tokens" if before else name, [*prompt, *before]))
    return [*found, *without][: subject.prefixes]


def _group_name(subject: Subject, number: int) -> str:
    """Name of the part in which a prompt was run."""
    first = number - number % _TOGETHER
    return f"{first} to {min(len(subject.prompts), first + _TOGETHER) - 1}"


def _paths(subject: Subject, group: Sequence[int]) -> list[dict[str, Any]]:
    prompts = [subject.prompts[number] for number in group]
    params = [seeded(subject.params, number) for number in group]
    tokens = [prompt for _, prompt in prompts]
    found = compare_paths(subject.on, subject.off, tokens, params, subject.speculation)
    return [{"prompt": name, **answer} for (name, _), answer in zip(prompts, found, strict=True)]


def _law(subject: Subject, prompt: Sequence[int]) -> dict[str, Any]:
    """The test at one prefix."""
    params = replace(subject.params, max_tokens=FIRST_TOKENS, min_tokens=0)
    cells = exact_cells(subject.off, prompt, params, subject.samples)
    before, longer = subject.on.stats, replace(params, max_tokens=_WHOLE_DRAFT)
    drafted, accepted = before.drafted, before.accepted
    texts = sample_texts(subject.on, prompt, longer, subject.speculation, subject.samples, FIRST_TOKENS)
    answer = chi_square(cells, texts)
    size = SIZE / subject.prefixes
    seen = smallest_difference(subject.samples, answer["degrees"], size, subject.power)
    tried = {"drafted": subject.on.stats.drafted - drafted, "accepted": subject.on.stats.accepted - accepted}
    return answer | {"size": size, "power": subject.power, "smallest_difference": seen, **tried}


class Ledger(Journal):
    """The answers so far, on disk after each part.

    Args:
        folder: where they lie; made if it is missing.
        settings: everything that changes an answer.
        provenance: on what and with what they were found; asked of a new audit only.

    Attributes:
        parts: kind -> name -> answer.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], provenance: Callable[[], Mapping[str, Any]]) -> None:
        self.parts: dict[str, dict[str, Any]] = {kind: {} for kind in ("rule", "fault", "paths", "logits", "law")}
        super().__init__(folder, settings, provenance)

    def keep(self, kind: str, name: str, answer: Any) -> None:
        """Keep one answer."""
        self._write({"kind": kind, "name": name, "answer": answer})
        self.parts[kind][name] = answer

    def _take(self, entry: Mapping[str, Any]) -> None:
        self.parts[entry["kind"]][entry["name"]] = entry["answer"]
