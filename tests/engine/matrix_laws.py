"""The exact law of the texts that an engine emits, by running it once for every way that its coins can fall."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from engine_helpers import Wide, engine, finish
from matrix_helpers import FREE_RULES, PROCESSORS, TOKENIZER, TREES, Known, Turns, drafting

from outrider.analysis.enumerate import EnumeratingCoins, Text, enumerate_law
from outrider.core.params import Draw, Rule, SamplingParams, Speculation
from outrider.core.process import History, Processor
from outrider.core.types import Proposal
from outrider.drafters.base import Drafter
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.scripted import ScriptedDrafter
from outrider.errors import UnsupportedError
from outrider.models.toy import TableTarget, random_decoder
from outrider.policies.base import Policy
from outrider.policies.fixed import Fixed

VOCAB = 4
PROMPT = (1, 2, 3, 1, 2)
LENGTH = 3
ENDS = (0,)
TARGET = TableTarget(VOCAB, order=2, seed=3, scale=1.0, context_length=len(PROMPT) + LENGTH)
OTHER = TableTarget(VOCAB, order=2, seed=4, scale=1.0, context_length=len(PROMPT) + LENGTH)
REDUCED = random_decoder(5, vocab_size=VOCAB, hidden=16, heads=2, layers=1, scale=0.6, head_ids=[3, 1])
_ENDS: dict[str, dict[str, Any]] = {
    "eos": {"ignore_eos": False},
    "stop token": {"stop_token_ids": [3]},
    "string in a block": {"stop": ["b"]},
    "string across blocks": {"stop": ["ab", "cc"]},
    "max_tokens": {"max_tokens": 2},
    "context": {"max_tokens": None},
}
SMALL_STOPS = list(_ENDS)


@dataclass(frozen=True)
class SmallCase:
    """One request whose texts can all be written down."""

    params: SamplingParams
    mask: Turns | None

    def law(self) -> dict[Text, float]:
        """The law of plain decoding's texts, by the definition."""
        found: dict[Text, float] = {}
        self._follow((), 1.0, found)
        return found

    def _follow(self, text: Text, weight: float, found: dict[Text, float]) -> None:
        if self._is_over(text):
            found[text] = found.get(text, 0.0) + weight
            return
        for token, chance in enumerate(self._next(text).tolist()):
            if chance > 0:
                self._follow((*text, token), weight * chance, found)

    def _next(self, text: Text) -> np.ndarray:
        ends = {*self.params.stop_token_ids, *(() if self.params.ignore_eos else ENDS)}
        processor = Processor(self.params, VOCAB, ends)
        state = processor.start(History(PROMPT), self.mask)
        for token in text:
            state = state.child(token)
        logits = torch.from_numpy(TARGET.law([*PROMPT, *text])[None, :].copy())
        return processor.law(logits, [state])[0].numpy().astype(np.float64)

    def _is_over(self, text: Text) -> bool:
        if not text:
            return False
        ends = {*self.params.stop_token_ids, *(() if self.params.ignore_eos else ENDS)}
        limit = LENGTH if self.params.max_tokens is None else self.params.max_tokens
        watched = TOKENIZER.decode(text[max(0, self.params.min_tokens - 1) :])
        return text[-1] in ends or len(text) >= limit or any(stop in watched for stop in self.params.stop)


def small_case(processor: str, stop: str, temperature: float) -> SmallCase:
    """A processor with an end, over four tokens."""
    asked = dict(PROCESSORS[processor])
    mask = Turns(VOCAB) if asked.pop("mask", False) else None
    params = SamplingParams(temperature=temperature, ignore_eos=True, max_tokens=LENGTH, **asked)
    return SmallCase(replace(params, **_ENDS[stop]), mask)


def favourites() -> Drafter:
    """Always proposes the same tokens."""
    return ScriptedDrafter(lambda _id, _tokens, budget: Proposal.chain([1, 2, 0][:budget], source="scripted"))


def favourite_tree() -> Drafter:
    """A tree of the same tokens: three children, and below the second of them two more."""

    def script(_id: str, _tokens: Sequence[int], budget: int) -> Proposal:
        parents, ids = np.asarray([-1, -1, -1, 1, 1])[:budget], np.asarray([2, 0, 3, 1, 2])[:budget]
        kinds = np.full(len(ids), int(Draw.DETERMINISTIC))
        return Proposal(ids, parents, kinds, ("scripted",) * len(ids), np.ones(len(ids)))

    return ScriptedDrafter(script)


def _drafting(name: str) -> tuple[list[Drafter], Policy]:
    if name == "favourites":
        return [favourites()], Fixed(2)
    if name == "small vocabulary":
        return [DraftModel(OTHER, VOCAB, num_tokens=2)], Fixed(2)
    if name in ("reduced head", "reduced head tree"):
        return [DraftModel(REDUCED, VOCAB)], Wide(3, 2, 2) if name.endswith("tree") else Fixed(2)
    if name == "favourite tree":
        return [favourite_tree()], Wide(5, 2, 3)
    return drafting(name, TARGET, OTHER, Known())[0], Wide(3, 2, 2) if name in TREES else Fixed(2)


def engine_law(name: str, rule: Rule, case: SmallCase, monkeypatch: pytest.MonkeyPatch) -> dict[Text, float] | None:
    """The law of the engine's texts, draft noise enumerated; None where drafter and rule are refused by name."""

    def text(coins: EnumeratingCoins) -> Text:
        def stream(_seed: int, round_number: int) -> EnumeratingCoins:
            coins.round = round_number
            return coins

        with monkeypatch.context() as patch:
            patch.setattr("outrider.engine.request.Stream", stream)
            patch.setattr("outrider.engine.engine.BatchCoins", lambda streams: streams[0])
            drafters, policy = _drafting(name)
            running = engine(TARGET, drafters, policy, tokenizer=TOKENIZER, end_ids=ENDS)
            (request,) = running.submit(PROMPT, case.params, Speculation(rule=rule), mask=case.mask)
            finish(running)
            assert not running.drafters.num_failures or rule not in FREE_RULES
        return tuple(request.output)

    try:
        return enumerate_law(text)
    except UnsupportedError as error:
        if rule.name not in str(error):
            raise
        return None
