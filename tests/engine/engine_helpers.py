"""Toy models, known texts, policies and runs that the engine's tests share."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch

from outrider.cache.base import Cache
from outrider.core.params import SamplingParams, Speculation
from outrider.core.types import IntArray, Outcome, Plan, TokenEvent
from outrider.drafters.base import Drafter
from outrider.engine.config import EngineConfig
from outrider.engine.engine import Engine
from outrider.engine.reference import reference_generate
from outrider.engine.request import Request
from outrider.models.base import ForwardInputs, ForwardOutputs, Segment, Target
from outrider.models.decoder import Decoder
from outrider.models.toy import TableTarget, random_decoder
from outrider.policies.base import Policy, RequestView, Shape
from outrider.policies.fixed import Fixed, admit_all

VOCAB = 64
PROMPT = (1, 2, 3, 4, 5)


@cache
def decoder(seed: int = 1, vocab_size: int = VOCAB, context_length: int = 512, layers: int = 2) -> Decoder:
    return random_decoder(seed, vocab_size=vocab_size, context_length=context_length, layers=layers, hidden=16, heads=2)


@cache
def table(seed: int = 1, vocab_size: int = VOCAB, context_length: int = 512, order: int = 3) -> TableTarget:
    return TableTarget(vocab_size, order=order, seed=seed, context_length=context_length)


_PLAIN: dict[str, list[int]] = {}


def plain(target: Target, prompt: Sequence[int], params: SamplingParams, **more: Any) -> list[int]:
    """What plain decoding emits, computed once for each question."""
    question = f"{id(target)} {list(prompt)} {params} {more}"
    if question not in _PLAIN:
        _PLAIN[question] = reference_generate(target, prompt, params, **more)
    return _PLAIN[question]


class SameText(Mapping[str, Sequence[int]]):
    """One known text for every request."""

    def __init__(self, text: Sequence[int] = ()) -> None:
        self.text = text

    def __getitem__(self, request_id: str) -> Sequence[int]:
        return self.text

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class Wide:
    """A policy of trees: a fixed number of nodes, depth and width."""

    def __init__(self, nodes: int, depth: int, width: int) -> None:
        self._nodes, self._depth, self._width = nodes, depth, width

    def choose(self, views: Sequence[RequestView]) -> list[Plan]:
        return [self._plan(view) for view in views]

    def _plan(self, view: RequestView) -> Plan:
        depth = min(self._depth, view.max_nodes, view.length or self._depth)
        nodes = min(self._nodes, view.max_nodes)
        return Plan(tuple((name, nodes) for name in view.drafters), depth, self._width)

    def admit(self, shapes: Sequence[Shape], views: Sequence[RequestView]) -> list[IntArray]:
        return admit_all(shapes)

    def update(self, outcome: Outcome) -> None:
        pass

    def forget(self, request_id: str) -> None:
        pass


class Listening:
    """Another policy that also keeps every outcome."""

    def __init__(self, policy: Policy | None = None) -> None:
        self._policy = policy or Fixed()
        self.outcomes: list[Outcome] = []
        self.forgotten: list[str] = []

    def choose(self, views: Sequence[RequestView]) -> list[Plan]:
        return self._policy.choose(views)

    def admit(self, shapes: Sequence[Shape], views: Sequence[RequestView]) -> list[IntArray]:
        return self._policy.admit(shapes, views)

    def update(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self._policy.update(outcome)

    def forget(self, request_id: str) -> None:
        self.forgotten.append(request_id)
        self._policy.forget(request_id)


class Altered:
    """A target whose logits are changed on the way out: `change(inputs, logits) -> logits`."""

    def __init__(self, target: Target, change: Callable[[ForwardInputs, torch.Tensor], torch.Tensor]) -> None:
        self._target, self._change = target, change
        self.vocab_size, self.context_length = target.vocab_size, target.context_length
        self.weight_bytes = target.weight_bytes
        self.make_cache = target.make_cache

    def forward(self, inputs: ForwardInputs, cache: Cache) -> ForwardOutputs:
        outputs = self._target.forward(inputs, cache)
        return replace(outputs, logits=self._change(inputs, outputs.logits.clone()))


def fresh(
    target: Target, tokens: Sequence[int], hidden_layers: Sequence[int] = ()
) -> tuple[ForwardOutputs, Cache, int]:
    """One pass over a whole text with an empty cache: logits at every token, the cache and its slot."""
    cache = target.make_cache()
    slot = cache.acquire()
    cache.reserve(slot, len(tokens))
    rows = np.arange(len(tokens))
    segments = [Segment(slot, 0, len(tokens), 0)]
    outputs = target.forward(ForwardInputs(np.asarray(tokens), rows, segments, rows, hidden_layers), cache)
    return outputs, cache, slot


def engine(target: Target, drafters: Sequence[Drafter] = (), policy: Policy | None = None, **more: Any) -> Engine:
    limits = {name: more.pop(name) for name in list(more) if name in EngineConfig.__slots__}
    return Engine(target, drafters, policy, config=EngineConfig(**({"max_running": 64} | limits)), **more)


def finish(running: Engine, after_step: Callable[[], None] = lambda: None, limit: int = 5000) -> list[TokenEvent]:
    """Step until nothing is left; the events."""
    events: list[TokenEvent] = []
    for _ in range(limit):
        if not running.num_unfinished:
            return events
        events += running.step()
        after_step()
    raise AssertionError("the engine does not come to an end")


def run(
    running: Engine, prompt: Sequence[int], params: SamplingParams, speculation: Speculation | None = None
) -> Request:
    (request,) = running.submit(prompt, params, speculation)
    finish(running)
    return request


def run_lengths(
    running: Engine, prompt: Sequence[int], params: SamplingParams, lengths: Sequence[int] = range(1, 9)
) -> list[Request]:
    """The same request once for each draft length, all in one batch."""
    requests = [running.submit(prompt, params, Speculation(length=length))[0] for length in lengths]
    finish(running)
    return requests


def assert_idle(running: Engine) -> None:
    """Nothing of any request is left behind."""
    assert running.num_unfinished == 0
    assert not running.scheduler.running
    assert not running.scheduler.waiting
    running.scheduler.prefixes.check_integrity()
    running.forget_prefixes()
    assert running.cache.nbytes == 0
    running.cache.check_integrity()  # type: ignore[attr-defined]
