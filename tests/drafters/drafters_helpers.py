"""Contexts, shapes and a loop without a cache, for tests of drafters."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from outrider.core.coins import BatchCoins, Stream
from outrider.core.params import Draw, Rule, SamplingParams
from outrider.core.process import History, Processor
from outrider.core.types import Kept, Plan
from outrider.core.verify import verify
from outrider.drafters.base import DraftContext, Drafter, Observation
from outrider.models.base import ForwardInputs, Segment
from outrider.policies.base import Policy
from outrider.policies.fixed import Fixed
from outrider.replay.engine import Played, ReplayEngine
from outrider.replay.records import Source, TextRecord
from outrider.replay.setups import Branching, Tree

NOTHING_SEEN = Observation()


def plan(name: str, budget: int, *, depth: int | None = None, width: int = 1, min_confidence: float = 0.0) -> Plan:
    return Plan(((name, budget),), budget if depth is None else depth, width, min_confidence)


def context(
    tokens: Sequence[int],
    wanted: Plan,
    *,
    request_id: str = "r",
    num_prompt: int | None = None,
    vocab_size: int = 16,
    draw: Draw = Draw.SHARED_NOISE,
    params: SamplingParams | None = None,
    stops: frozenset[int] = frozenset(),
    seed: int = 7,
    round_number: int = 0,
    **more: Any,
) -> DraftContext:
    count = len(tokens) if num_prompt is None else num_prompt
    processor = Processor(params or SamplingParams(), vocab_size, stops)
    history = History(tokens[:count])
    history.extend(tokens[count:])
    return DraftContext(
        request_id=request_id,
        tokens=tokens,
        num_prompt=count,
        plan=wanted,
        draw=draw,
        processor=processor,
        state=processor.start(history),
        coins=Stream(seed, round_number),
        stop_token_ids=stops,
        **more,
    )


def kept(tokens: Sequence[int], num_accepted: int | None = None) -> Kept:
    count = max(0, len(tokens) - 1) if num_accepted is None else num_accepted
    return Kept(tokens=tuple(tokens), nodes=tuple(range(max(0, len(tokens) - 1))), num_accepted=count)


class Spy:
    """A model that remembers its caches and passes."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.caches: list[Any] = []
        self.passes: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def make_cache(self, max_tokens: int | None = None) -> Any:
        self.caches.append(self.model.make_cache(max_tokens))
        return self.caches[-1]

    def forward(self, inputs: Any, cache: Any) -> Any:
        self.passes.append(inputs)
        return self.model.forward(inputs, cache)


def fresh_logits(target: Any, tokens: Sequence[int], num_rows: int) -> Any:
    """[num_rows, V] logits after each of the last tokens, with a new cache."""
    cache = target.make_cache()
    slot = cache.acquire()
    count = len(tokens)
    cache.reserve(slot, count)
    rows = np.arange(count)
    segment = Segment(slot, 0, count, 0)
    return target.forward(ForwardInputs(np.asarray(tokens), rows, [segment], rows[count - num_rows :]), cache).logits


class Laws:
    """The target's laws along a chain, from its logits [n + 1, V]."""

    def __init__(self, logits: Any, asked: DraftContext, tokens: Sequence[int]) -> None:
        self.logits, self.processor = logits, asked.processor
        self.states = [asked.state]
        for token in tokens:
            self.states.append(self.states[-1].child(int(token)))

    def at(self, requests: Any, nodes: Any) -> Any:
        node = int(nodes[0]) + 1
        return self.processor.law(self.logits[node : node + 1], [self.states[node]])


class Loop:
    """Speculative decoding of one request without engine: recomputes the target from scratch in each step.

    `change(proposal, round)` may alter what is verified; `steps` collects (drafted, accepted) of each step.
    """

    def __init__(self, target: Any, drafter: Any, prompt: Sequence[int], wanted: Plan, **options: Any) -> None:
        self.target, self.drafter, self.wanted = target, drafter, wanted
        self.tokens = list(prompt)
        self.rule = options.pop("rule", Rule.MATCH)
        self.change = options.pop("change", None)
        self.options = {"num_prompt": len(prompt), "vocab_size": target.vocab_size, "seed": 7, **options}
        self.steps: list[tuple[int, int]] = []
        drafter.load()
        drafter.begin("r", self.tokens)

    def step(self) -> None:
        number = len(self.steps)
        asked = context(self.tokens, self.wanted, round_number=number, **self.options)
        proposal = self.drafter.propose([asked])[0]
        if self.change is not None:
            proposal = self.change(proposal, number)
        logits = fresh_logits(self.target, [*self.tokens, *proposal.tokens.tolist()], proposal.num_nodes + 1)
        laws = Laws(logits, asked, proposal.tokens)
        coins = BatchCoins([Stream(self.options["seed"], number)])
        result = verify([self.rule], laws, [proposal], coins, [len(self.tokens)])[0]
        emitted = [int(proposal.tokens[node]) for node in result.nodes] + [result.next_token]
        self.steps.append((proposal.num_nodes, len(result.nodes)))
        self.tokens.extend(emitted)
        self.drafter.observe("r", kept(emitted), NOTHING_SEEN)

    def run(self, count: int) -> list[int]:
        """At least `count` tokens of output."""
        while len(self.tokens) < self.options["num_prompt"] + count:
            self.step()
        return self.tokens[self.options["num_prompt"] :][:count]


def play(drafter: Drafter, prompt: Sequence[int], output: Sequence[int], nodes: int, **more: Any) -> Played:
    """A text as if a target wrote it, with a drafter that makes chains or, with `width`, trees of so many nodes."""
    width, prediction = more.get("width", 1), more.get("prediction")
    vocab_size = 1 + max(*prompt, *output, *(prediction or ()), 0)
    record = TextRecord(
        id="text",
        task="text",
        prompt=tuple(prompt),
        output=tuple(output),
        max_tokens=len(output),
        finish_reason="length",
        source=Source("nobody", vocab_size, len(prompt) + len(output) + len(prediction or ())),
        prediction=None if prediction is None else tuple(prediction),
    )
    policy: Policy = Fixed(nodes)
    if width > 1:
        policy = Branching(policy, Tree(width, nodes))
    return ReplayEngine([record], [drafter], policy).play(record)
