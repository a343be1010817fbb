"""The checks that prove the rules: each gives the largest difference from the target's law over all falls of all coins.

A check takes a design (`analysis.faults`): the shipped one has to give nothing but rounding, each biased one has to be
seen by some check. One pass is the shipped code throughout: drafting (the draft model itself, or its steps on toy
laws), trimming for a policy that would like to cut unlikely nodes, judging.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from toy import PROMPT, Toy, TreeLaws, draft_tree, emitted

from outrider.analysis.enumerate import complete, enumerate_law, largest_difference, text_law
from outrider.analysis.faults import Fault, Text
from outrider.core.params import Draw, Rule, SamplingParams
from outrider.core.tree import closed, path
from outrider.core.types import Plan, Proposal
from outrider.core.verify import verify
from outrider.drafters.base import DraftContext
from outrider.drafters.draft_model import DraftModel
from outrider.engine.batch import trim
from outrider.models.table import TokenCache
from outrider.policies.base import RequestView

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
PLAIN = SamplingParams(temperature=1.0)
SAMPLED = (Draw.IID, Draw.WITHOUT_REPLACEMENT, Draw.TOP_PLUS_SAMPLE)
FITS = [
    (Rule.MATCH, Draw.DETERMINISTIC),
    (Rule.MATCH, Draw.IID),
    (Rule.MATCH, Draw.WITHOUT_REPLACEMENT),
    (Rule.TOKEN, Draw.DETERMINISTIC),
    *((Rule.TOKEN, draw) for draw in SAMPLED),
    (Rule.BLOCK, Draw.DETERMINISTIC),
    (Rule.BLOCK, Draw.IID),
    (Rule.TRAVERSAL, Draw.DETERMINISTIC),
    (Rule.TRAVERSAL, Draw.WITHOUT_REPLACEMENT),
]
"""Rules with the draws that they can judge (shared noise is no choice of its own: MATCH takes every tree)."""


@dataclass(frozen=True)
class Check:
    """One enumeration.

    `widths` is the shape of a drawn tree; `plan` (nodes, depth, width) lets the draft model choose one instead. The law
    of the first `length` tokens is compared, after `passes` passes.
    """

    rule: Rule
    draw: Draw
    length: int
    widths: tuple[int, ...] = ()
    plan: tuple[int, int, int] | None = None
    params: SamplingParams = PLAIN
    passes: int = 1
    vocab_size: int = 3

    def __str__(self) -> str:
        shape = "x".join(map(str, self.widths)) if self.plan is None else f"model {self.plan}"
        kind = "processed" if self.params is PROCESSED else "plain"
        return f"{self.rule.name} {self.draw.name} {shape} {kind} passes {self.passes}"


def _toy_checks(rule: Rule, draw: Draw) -> list[Check]:
    chains = [
        Check(rule, draw, 4, (1, 1, 1)),
        Check(rule, draw, 2, (1,)),
        Check(rule, draw, 3, (1, 1), params=PROCESSED),
    ]
    if rule is Rule.BLOCK:
        return [*chains, Check(rule, draw, 5, (1, 1, 1, 1), vocab_size=2), Check(rule, draw, 3, (1, 1), passes=2)]
    trees = [Check(rule, draw, len(widths) + 1, widths) for widths in [(2,), (3,), (2, 1), (1, 2), (2, 2)]]
    wide = Check(rule, draw, 3, (2, 1), params=PROCESSED, vocab_size=4 if draw is Draw.DETERMINISTIC else 3)
    return [*chains, *trees, wide, Check(rule, draw, 3, (2,), passes=2)]


def _model_checks(rule: Rule, draw: Draw) -> list[Check]:
    chain = Check(rule, draw, 3, plan=(2, 2, 1))
    if rule is Rule.BLOCK:
        return [chain, Check(rule, draw, 4, plan=(3, 3, 1))]
    return [chain, Check(rule, draw, 3, plan=(4, 2, 2)), Check(rule, draw, 3, plan=(3, 2, 2), params=PROCESSED)]


CHECKS = {str(check): check for rule, draw in FITS for check in (*_toy_checks(rule, draw), *_model_checks(rule, draw))}


class _Wide:
    """A table model whose logits are the toy drafter's, in float64."""

    def __init__(self, toy: Toy) -> None:
        self.toy, self.vocab_size, self.context_length, self.weight_bytes = toy, toy.vocab_size, 64, 0

    def make_cache(self, max_tokens: int | None = None) -> TokenCache:
        return TokenCache(max_tokens)

    def forward(self, inputs: Any, tokens: TokenCache) -> Any:
        rows = {}
        for segment in inputs.segments:
            tokens.write(segment.slot, segment.num_cached, inputs.token_ids[segment.start :][: segment.num_rows])
            stored, parents = tokens.tokens(segment.slot), segment.parents
            num_nodes = 0 if parents is None else len(parents)
            base = len(stored) - num_nodes
            for row in range(segment.num_rows):
                place = segment.num_cached + row
                ids = [*range(min(place + 1, base))] if parents is not None else [*range(place + 1)]
                if parents is not None and place >= base:
                    ids += [base + node for node in path(parents, place - base)]
                rows[segment.start + row] = self.toy.logits(tuple(stored[ids][len(PROMPT) :].tolist()))
        wanted = [rows[row] for row in inputs.logits_rows.tolist()]
        return SimpleNamespace(logits=torch.from_numpy(np.stack(wanted)), hidden={}, seconds=0.0)


def _drafted(check: Check, coins: Any, drafter: Toy, text: Text, fault: Fault) -> Proposal:
    """What the draft model itself proposes after a text."""
    nodes, depth, width = check.plan or (0, 0, 0)
    model = DraftModel(
        _Wide(Toy(drafter.seed, drafter.vocab_size, drafter.processor.params)), drafter.vocab_size, steps=fault.steps
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
    """What a policy keeps that cares for nothing but likely tokens."""
    likely: list[int] = []
    for node in range(proposal.num_nodes):
        above = path(proposal.parents, node)
        if float(np.prod(proposal.confidence[list(above)])) >= 0.3:
            likely.append(node)
    assert closed(proposal.parents, likely)
    return likely


def _view(check: Check) -> RequestView:
    return RequestView("r", check.rule, ("toy",), None, len(PROMPT), 0, 99)


def run_check(
    check: Check, fault: Fault, make: Callable[[Any], Any] = np.asarray, seeds: tuple[int, int] = (21, 22)
) -> float:
    """The largest difference from plain decoding over all texts; infinite where a coin is asked for twice."""
    ends = (check.vocab_size - 1,) if check.params is PROCESSED else ()

    @cache
    def toys(text: Text) -> tuple[Toy, Toy]:
        target = Toy(seeds[0], check.vocab_size, check.params, committed=text, end_ids=ends, make=make)
        return target, Toy(seeds[1], check.vocab_size, check.params, committed=text, end_ids=ends, make=make)

    def one_pass(coins: Any, text: Text, turn: int) -> Text:
        coins.round = turn
        target, drafter = toys(text)
        if check.plan is None:
            proposal = draft_tree(coins, drafter, check.widths, check.draw, fault.steps)
        else:
            proposal = _drafted(check, coins, drafter, text, fault)
        proposal = trim(proposal, _admitted(proposal), _view(check), fault.steps)
        laws, start = TreeLaws(target, [proposal]), [len(PROMPT) + len(text)]
        (result,) = verify([check.rule], laws, [proposal], coins, start, fault.steps)
        return emitted(proposal, result)

    def decode(coins: Any) -> Text:
        text: Text = ()
        for number in range(check.passes):
            turns = count(fault.round_of(number), 100)
            text += fault.emit(lambda text=text, turns=turns: one_pass(coins, text, next(turns)))
        return text

    plain, _ = toys(())
    try:
        outcomes = enumerate_law(decode)
    except ValueError as error:
        if "twice" not in str(error):
            raise
        return float("inf")
    return largest_difference(
        complete(outcomes, plain.numpy_law, check.length), text_law(plain.numpy_law, check.length)
    )
