"""The shipped rules under every fall of every coin: how far what they emit is from the target's law.

One pass is the shipped code throughout: drafting (the draft model itself, or its steps on toy laws), trimming for a
policy that would like to cut unlikely nodes, judging. A check takes a design (`analysis.faults`): the shipped one has
to give nothing but rounding, each biased one has to be seen. This module knows no real model. Invariant: a check's
answer is a number without chance.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

import numpy as np

from outrider.analysis.enumerate import complete, enumerate_law, largest_difference, text_law
from outrider.analysis.faults import Fault, Text
from outrider.bench.toys import PROMPT, Toy, ToyLaws, ToyTarget, draw_tree, emitted
from outrider.core.params import Draw, Rule, SamplingParams
from outrider.core.tree import path
from outrider.core.types import Plan, Proposal
from outrider.core.verify import verify
from outrider.drafters.base import DraftContext
from outrider.drafters.draft_model import DraftModel
from outrider.engine.batch import trim
from outrider.policies.base import RequestView

__all__ = ["FITS", "PROCESSED", "ROUNDING", "Check", "all_checks", "cheapest_first", "run_check"]

ROUNDING = 1e-12
"""A larger difference from the target's law is a bias."""

_PLAIN = SamplingParams(temperature=1.0)
PROCESSED = SamplingParams(
    temperature=0.8,
    top_k=3,
    top_p=0.93,
    min_p=0.02,
    repetition_penalty=1.4,
    presence_penalty=0.3,
    frequency_penalty=0.5,
    bad_words=[[2, 0], [1, 1]],
    min_tokens=3,
    logit_bias={0: 0.4},
)
"""Every processor at once."""

FITS = {
    Rule.MATCH: (Draw.DETERMINISTIC, Draw.IID, Draw.WITHOUT_REPLACEMENT),
    Rule.TOKEN: (Draw.DETERMINISTIC, Draw.IID, Draw.WITHOUT_REPLACEMENT, Draw.TOP_PLUS_SAMPLE),
    Rule.BLOCK: (Draw.DETERMINISTIC, Draw.IID),
    Rule.TRAVERSAL: (Draw.DETERMINISTIC, Draw.WITHOUT_REPLACEMENT),
    Rule.TYPICAL: (Draw.DETERMINISTIC,),
}
"""Draws that a rule can judge. Noise shared with the target is no choice of its own: MATCH is exact for every tree."""


@dataclass(frozen=True)
class Check:
    """One enumeration.

    Attributes:
        rule: how drafts are judged.
        draw: how they are drawn.
        length: the law of the first so many tokens is compared.
        widths: shape of a drawn tree: children of a node at each depth.
        plan: (nodes, depth, width): the draft model grows a tree of its own instead.
        params: the processing chain.
        processed: name of that chain.
        passes: judged passes one after the other.
        vocab_size: number of tokens.
    """

    rule: Rule
    draw: Draw
    length: int
    widths: tuple[int, ...] = ()
    plan: tuple[int, int, int] | None = None
    params: SamplingParams = _PLAIN
    processed: str = "plain"
    passes: int = 1
    vocab_size: int = 3

    def __str__(self) -> str:
        """Its name in a certificate."""
        shape = "x".join(map(str, self.widths)) if self.plan is None else f"draft model {self.plan}"
        passes = "" if self.passes == 1 else f", {self.passes} passes"
        return f"{self.rule.name} {self.draw.name} {shape}, {self.processed}, V={self.vocab_size}{passes}"


def all_checks(rule: Rule, params: SamplingParams | None = None) -> list[Check]:
    """All checks of one rule: chains and trees, plain and processed laws, one pass and two.

    Args:
        rule: the rule.
        params: further settings to check under, those of a user; token ids in them mean nothing here and are left out.
    """
    return [check for draw in FITS[rule] for check in _checks(rule, draw, params)]


def _checks(rule: Rule, draw: Draw, params: SamplingParams | None) -> list[Check]:
    found = [
        Check(rule, draw, 4, (1, 1, 1)),
        Check(rule, draw, 2, (1,)),
        Check(rule, draw, 3, (1, 1), params=PROCESSED, processed="all processors"),
        Check(rule, draw, 3, plan=(2, 2, 1)),
    ]
    own = None if params is None else _for_toys(params)
    if rule is Rule.BLOCK:
        found.append(Check(rule, draw, 5, (1, 1, 1, 1), vocab_size=2))
        found.append(Check(rule, draw, 3, (1, 1), passes=2))
        found.append(Check(rule, draw, 4, plan=(3, 3, 1)))
        return (
            found if own is None else [*found, Check(rule, draw, 4, (1, 1, 1), params=own, processed="your settings")]
        )
    found += [Check(rule, draw, len(widths) + 1, widths) for widths in [(2,), (3,), (2, 1), (1, 2), (2, 2)]]
    wide = 4 if draw is Draw.DETERMINISTIC else 3
    found.append(Check(rule, draw, 3, (2, 1), params=PROCESSED, processed="all processors", vocab_size=wide))
    found.append(Check(rule, draw, 3, (2,), passes=2))
    found.append(Check(rule, draw, 3, plan=(4, 2, 2)))
    found.append(Check(rule, draw, 3, plan=(3, 2, 2), params=PROCESSED, processed="all processors"))
    return found if own is None else [*found, Check(rule, draw, 3, (2, 1), params=own, processed="your settings")]


def _for_toys(params: SamplingParams) -> SamplingParams:
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    return SamplingParams(**{name: getattr(params, name) for name in names})


def cheapest_first(checks: Iterable[Check]) -> list[Check]:
    """Checks in the order in which a fault is looked for."""
    return sorted(checks, key=lambda check: (check.passes, np.prod(check.plan or check.widths), check.length))


def run_check(
    check: Check, design: Fault, make: Callable[[Any], Any] = np.asarray, seeds: tuple[int, int] = (21, 22)
) -> float:
    """The largest difference from plain decoding over all texts; infinite where a coin is asked for twice.

    Args:
        check: what is enumerated.
        design: the shipped code, or a biased one.
        make: gives an array of the kind that the laws are made of, from a NumPy one.
        seeds: of the toy target and the toy drafter.
    """
    ends = (check.vocab_size - 1,) if check.params is PROCESSED else ()

    @cache
    def toys(text: Text) -> tuple[Toy, Toy]:
        target, draft = (
            Toy(seed, check.vocab_size, check.params, committed=text, end_ids=ends, make=make) for seed in seeds
        )
        return target, draft

    def one_pass(coins: Any, text: Text, turn: int) -> Text:
        coins.round = turn
        target, drafter = toys(text)
        proposal = _proposed(check, coins, drafter, text, design)
        view = RequestView("r", check.rule, ("toy",), None, len(PROMPT), 0, 99)
        proposal = trim(proposal, _admitted(proposal), view, design.steps)
        start = [len(PROMPT) + len(text)]
        (result,) = verify([check.rule], ToyLaws(target, [proposal]), [proposal], coins, start, design.steps)
        return emitted(proposal, result)

    def decode(coins: Any) -> Text:
        text: Text = ()
        for number in range(check.passes):
            turns = count(design.round_of(number), 100)
            text += design.emit(lambda text=text, turns=turns: one_pass(coins, text, next(turns)))  # type: ignore[misc]
        return text

    plain = toys(())[0].numpy_law
    try:
        outcomes = enumerate_law(decode)
    except ValueError as error:
        if "twice" not in str(error):
            raise
        return float("inf")
    return largest_difference(complete(outcomes, plain, check.length), text_law(plain, check.length))


def _proposed(check: Check, coins: Any, drafter: Toy, text: Text, design: Fault) -> Proposal:
    """A drawn tree, or what the draft model itself proposes after a text."""
    if check.plan is None:
        return draw_tree(coins, drafter, check.widths, check.draw, design.steps)
    nodes, depth, width = check.plan
    model = DraftModel(
        ToyTarget(Toy(drafter.seed, drafter.vocab_size, drafter.processor.params)),
        drafter.vocab_size,
        steps=design.steps,
    )
    model.load()
    model.begin("r", [*PROMPT, *text])
    context = DraftContext(
        request_id="r",
        tokens=[*PROMPT, *text],
        num_prompt=len(PROMPT),
        plan=Plan(((model.name, nodes),), depth, width),
        draw=check.draw,
        processor=drafter.processor,
        state=drafter.processor.start(drafter.history),
        coins=coins,
        rule=check.rule,
    )
    return model.propose([context])[0]


def _admitted(proposal: Proposal) -> list[int]:
    """What a policy keeps that cares for nothing but likely paths."""
    paths = [list(path(proposal.parents, node)) for node in range(proposal.num_nodes)]
    return [node for node, above in enumerate(paths) if float(np.prod(proposal.confidence[above])) >= 0.3]
