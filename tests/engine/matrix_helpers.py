"""The factors of the sampling matrix: processors, ends, and every drafter that is registered.

A drafter enters by being registered; one that needs more than its default options needs a line in `NEEDY`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from engine_helpers import Wide, decoder, plain

from outrider.core.params import Rule, SamplingParams
from outrider.drafters import scripted
from outrider.drafters.base import Drafter
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.registry import check_drafter, list_drafters
from outrider.drafters.scripted import ScriptedDrafter
from outrider.models.base import Target
from outrider.policies.base import Policy
from outrider.policies.fixed import Fixed
from toy_text import make_tokenizer

LETTERS = 27  # ids of the toy tokenizer that are one letter, and an end token
TOKENIZER = make_tokenizer()
PROMPT = (1, 2, 3, 1, 2)
COUNT = 12
ENDS = (5, 6, 7, 8)
"""The model's own end tokens: enough of them that they do come up."""
FREE_RULES = {Rule.MATCH, Rule.TOKEN}
"""Rules that judge any tree of given tokens; under others a drafter whose trees do not fit loses its turn."""
EXACT_RULES = [rule for rule in Rule if rule.name != "TYPICAL"]


@dataclass(frozen=True)
class Turns:
    """An outside mask: at every place another third of the tokens is forbidden."""

    vocab_size: int
    turn: int = 0

    def allowed(self) -> np.ndarray:
        return (np.arange(self.vocab_size) + self.turn) % 3 != 0

    def child(self, token: int) -> "Turns":
        return Turns(self.vocab_size, self.turn + 1 + token % 2)


PROCESSORS: dict[str, dict[str, Any]] = {
    "none": {},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.3},
    "repetition": {"repetition_penalty": 1.4},
    "presence": {"presence_penalty": 0.9},
    "frequency": {"frequency_penalty": -0.6},
    "bias": {"logit_bias": {1: 1.5, 2: -100.0}},
    "bad words": {"bad_words": [[3], [1, 2], [2, 1, 1]]},
    "min_tokens": {"min_tokens": 2},
    "mask": {"mask": True},
    "all": {
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "logit_bias": {1: 0.5},
        "bad_words": [[2, 1]],
        "min_tokens": 1,
        "mask": True,
    },
}
STOPS = ["eos", "stop token", "string in a block", "string across blocks", "max_tokens", "context"]


class Known(Mapping[str, Sequence[int]]):
    """Texts that scripts follow, filled in when the requests are there."""

    def __init__(self) -> None:
        self.texts: dict[str, list[int]] = {}

    def __getitem__(self, request_id: str) -> Sequence[int]:
        return self.texts.get(request_id, [])

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def __len__(self) -> int:
        return len(self.texts)


NEEDY: dict[str, Callable[[Target, Target], Drafter]] = {
    "draft_model": lambda target, other: DraftModel(other, target.vocab_size),
}


def registered(name: str, target: Target, other: Target) -> Drafter:
    """A registered drafter with its default options."""
    if name in NEEDY:
        return NEEDY[name](target, other)
    entry, options = check_drafter(name)
    return entry.build(options, SimpleNamespace(name="toy", target=target, tokenizer=TOKENIZER), False)


def drafting(name: str, target: Target, other: Target, known: Known) -> tuple[list[Drafter], Policy]:
    """The drafters of one row of the matrix, and a policy that uses them."""
    half = ScriptedDrafter(scripted.wrong_half(known, target.vocab_size), name="half")
    tree = ScriptedDrafter(scripted.deep_tree(known, 2, -1, target.vocab_size), past_stops=True)
    if name in TREES:
        return [registered(name.removesuffix(" tree"), target, other)], Wide(8, 4, 3)
    more: dict[str, tuple[list[Drafter], Policy]] = {
        "scripted": ([ScriptedDrafter(scripted.all_right(known), past_stops=True)], Fixed(5)),
        "scripted tree": ([tree], Wide(8, 4, 2)),
        "ensemble": ([NgramDrafter(3, 1), half, DraftModel(other, target.vocab_size)], Fixed(4)),
        "ensemble of trees": ([tree, NgramDrafter(2, 1), half], Wide(8, 4, 3)),
    }
    return more[name] if name in more else ([registered(name, target, other)], Fixed(4))


TREES = ["suffix tree", "recycling tree", "draft_model tree"]
"""Registered drafters whose trees branch."""
DRAFTINGS = [entry.name for entry in list_drafters()] + [
    *TREES,
    "scripted",
    "scripted tree",
    "ensemble",
    "ensemble of trees",
]


@dataclass(frozen=True)
class Case:
    """One request of the matrix.

    Attributes:
        name: processor and end.
        params: what is asked.
        mask: outside mask.
        full: what plain decoding says if nothing but the context ends it.
        expected: what plain decoding says.
    """

    name: str
    params: SamplingParams
    mask: Turns | None
    full: list[int]
    expected: list[int]

    @property
    def reaches_a_limit(self) -> bool:
        """Whether nothing but a limit ends the text."""
        return self.name.endswith(("max_tokens", "context")) or not self.ends

    @property
    def ends(self) -> bool:
        """Whether the last token ends the text by itself."""
        ends = {*self.params.stop_token_ids, *(() if self.params.ignore_eos else ENDS)}
        text = TOKENIZER.decode(self.expected[max(0, self.params.min_tokens - 1) :])
        return self.expected[-1] in ends or any(stop in text for stop in self.params.stop)


def target() -> Target:
    """The target of the matrix: its context ends behind `COUNT` output tokens."""
    return decoder(7, LETTERS, len(PROMPT) + COUNT)


def cases(temperature: float, seed: int = 7) -> list[Case]:
    """Every processor with every end; the requests' seeds begin with this one."""
    return [
        _case(processor, stop, temperature, 31 * number + seed)
        for number, processor in enumerate(PROCESSORS)
        for stop in STOPS
    ]


def _case(processor: str, stop: str, temperature: float, seed: int) -> Case:
    asked = dict(PROCESSORS[processor])
    mask = Turns(LETTERS) if asked.pop("mask", False) else None
    params = SamplingParams(temperature=temperature, seed=seed, ignore_eos=True, max_tokens=COUNT, **asked)
    full = plain(target(), PROMPT, params, mask=mask)
    strings = {"string in a block": full[3:4], "string across blocks": full[2:6]}
    asked_too: dict[str, Any] = {
        "eos": {"ignore_eos": False},
        "stop token": {"stop_token_ids": [full[4], full[9]]},
        "max_tokens": {"max_tokens": 7},
        "context": {"max_tokens": None},
    }.get(stop, {})
    if stop in strings:
        asked_too["stop"] = [TOKENIZER.decode(strings[stop]), "never there"]
    params = replace(params, **asked_too)
    tokens = plain(target(), PROMPT, replace(params, stop=()), end_ids=ENDS, mask=mask)
    return Case(f"{processor}, {stop}", params, mask, full, cut_at_strings(tokens, params))


def cut_at_strings(tokens: list[int], params: SamplingParams) -> list[int]:
    """The tokens up to the one that completes a stop string, by the definition: each token is one letter."""
    first = max(0, params.min_tokens - 1)
    for count in range(first + 1, len(tokens) + 1):
        text = TOKENIZER.decode(tokens[first:count])
        if any(stop in text for stop in params.stop):
            return tokens[:count]
    return tokens
