"""Penalties, bans and outside masks act at every token of a block, and on their own request only.

Written against vllm-project/vllm#18902, NVIDIA/TensorRT-LLM PR 17701, mlx-node/mlx-node PR 11, mattn/tensai PR 244
(penalties without effect once drafts are on), sgl-project/sglang PR 33643 (one token of a block is counted),
vllm-project/vllm PR 31908 and PR 29699 (a neighbour's settings, or counts, on the wrong rows), sgl-project/sglang#26330
(a custom processor is not asked for drafted tokens).
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from engine_helpers import VOCAB, SameText, Wide, assert_idle, decoder, engine, finish, plain, run

from outrider.core.params import Rule, SamplingParams, Speculation
from outrider.drafters import scripted
from outrider.drafters.base import Drafter
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.scripted import ScriptedDrafter
from outrider.models.base import Target
from outrider.models.toy import TableTarget
from outrider.policies.fixed import Fixed

HELLO = (9, 9, 9, 3, 9)
COUNT = 30
KINDS = ["right", "tree", "draft model", "ngram", "none"]


def drafters(kind: str, target: Target, text: list[int]) -> list[Drafter]:
    texts = SameText(text)
    found: dict[str, list[Drafter]] = {
        "right": [ScriptedDrafter(scripted.all_right(texts))],
        "tree": [ScriptedDrafter(scripted.deep_tree(texts, 2, -1, VOCAB))],
        "draft model": [DraftModel(target, VOCAB)],
        "ngram": [NgramDrafter(3, 1)],
        "none": [],
    }
    return found[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_each_penalty_has_its_effect_and_the_same_one_with_drafts(kind: str, temperature: float) -> None:
    asked = [{"frequency_penalty": value} for value in (-2.0, 0.0, 2.0)]
    asked += [{"repetition_penalty": 1.5}, {"presence_penalty": 2.0}, {"presence_penalty": -2.0}]
    texts = []
    for settings in asked:
        params = SamplingParams(temperature=temperature, seed=3, max_tokens=COUNT, **settings)
        expected = plain(decoder(), HELLO, params)
        policy = Wide(8, 4, 2) if kind == "tree" else Fixed(6)
        running = engine(decoder(), drafters(kind, decoder(), [*HELLO, *expected, 0]), policy)
        assert run(running, HELLO, params).output == expected
        texts.append(tuple(expected))
    assert len(set(texts)) >= 4
    assert max(map(texts[2].count, texts[2])) < max(map(texts[0].count, texts[0]))  # used less, and used more


def loop(last: tuple[int, ...]) -> np.ndarray:
    """A model that is stuck in 1 2 3, with 20 and 30 as the ways out."""
    row = np.full(VOCAB, -4.0, dtype=np.float32)
    row[{1: 2, 2: 3}.get(last[-1], 1)] = 4.0
    row[20 + last[-1] % 20] = 1.2
    return row


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_breaks_at_the_same_token(kind: str) -> None:
    # sgl-project/sglang PR 33643: the better the draft, the weaker the penalty.
    target = TableTarget(VOCAB, order=1, logits=loop)
    params = SamplingParams(frequency_penalty=0.5, max_tokens=60)
    expected = plain(target, (1,), params)
    (leaves,) = {next(place for place, token in enumerate(expected) if token > 3)}
    assert 9 < leaves < 50
    policy = Wide(16, 8, 2) if kind == "tree" else Fixed(8)
    request = run(engine(target, drafters(kind, target, [1, *expected, 0]), policy), (1,), params)
    assert request.output == expected
    if kind == "right":
        assert request.stats.block_efficiency > 8


@pytest.mark.parametrize("odd", range(4))
@pytest.mark.parametrize(
    "settings",
    [
        {"bad_words": [[token] for token in range(20)]},
        {"logit_bias": {9: 6.0, 3: -100.0}},
        {"min_p": 0.4},
        {"frequency_penalty": 2.0, "repetition_penalty": 1.5},
        {"min_tokens": 20, "stop_token_ids": list(range(32))},
    ],
)
def test_settings_reach_their_own_request_only(settings: dict[str, object], odd: int) -> None:
    base = SamplingParams(temperature=0.9, max_tokens=20)
    asked = [replace(base, seed=seed, presence_penalty=0.1 * seed) for seed in range(4)]
    asked[odd] = replace(base, seed=odd, **settings)
    running = engine(decoder(), [NgramDrafter(3, 1), DraftModel(decoder(2), VOCAB)], Fixed(5))
    lengths = (None, 2, 5, 1)
    requests = [
        running.submit(HELLO, params, Speculation(length=length) if length else Speculation(off=True))[0]
        for params, length in zip(asked, lengths, strict=True)
    ]
    finish(running)
    assert [request.output for request in requests] == [plain(decoder(), HELLO, params) for params in asked]
    assert plain(decoder(), HELLO, replace(base, seed=odd, presence_penalty=0.1 * odd)) != requests[odd].output
    assert_idle(running)


@dataclass(frozen=True)
class EveryFifth:
    """A processor of the user's own: every fifth token is 9, and no other is."""

    place: int = 0

    def allowed(self) -> np.ndarray:
        return (np.arange(VOCAB) == 9) == (self.place % 5 == 4)

    def child(self, token: int) -> "EveryFifth":
        return EveryFifth(self.place + 1)


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_is_asked_at_every_place_of_a_block(kind: str, rule: Rule) -> None:
    params = SamplingParams(temperature=0.9, seed=8, max_tokens=COUNT)
    expected = plain(decoder(), HELLO, params, mask=EveryFifth())
    policy = Wide(8, 4, 2) if kind == "tree" else Fixed(7)
    running = engine(decoder(), drafters(kind, decoder(), [*HELLO, *expected, 0]), policy)
    (request,) = running.submit(HELLO, params, Speculation(rule=rule), mask=EveryFifth())
    finish(running)
    assert [token == 9 for token in request.output] == [place % 5 == 4 for place in range(COUNT)]
    if rule is Rule.MATCH:
        assert request.output == expected
    if kind == "right":
        assert request.stats.accepted > 0
