"""The law of what the engine emits, on vocabularies so small that the exact law can be written down.

The tests of `core` prove the rules by enumeration; these show that the engine hands them the right rows, paths and
noise. Written against huggingface/transformers#32867 (a greedy draft judged by its soft probability),
apple/ml-recurrent-drafter#6 and xLLM-AI/xllm PR 2175 (a searched draft judged as a sampled one), lablup/mlxcel#902
(argmax at any temperature), openvinotoolkit/openvino.genai#4190 (the row after a refused token),
huggingface/transformers PR 28508 (everything accepted), vllm-project/vllm PR 10198, ohdearquant/lattice PR 974 and
google-ai-edge/LiteRT-LM#3017 (sampling settings on one side only), vllm-project/vllm#42744 (min_p and logit_bias on
some rows only), jaymody/speculative-sampling#3 (soft probabilities at temperature 0), google-deepmind/gemma#562
(temperatures near 0).
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_helpers import Wide, engine, finish, plain, run

from outrider.analysis.theory import acceptance, coupled_acceptance
from outrider.core.params import Draw, Rule, SamplingParams, Speculation
from outrider.core.process import History, Processor
from outrider.core.types import Proposal
from outrider.drafters.base import Drafter
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.scripted import ScriptedDrafter
from outrider.engine.engine import Engine
from outrider.models.toy import TableTarget
from outrider.policies.fixed import Fixed

VOCAB = 4
PROMPT = (0, 1, 2, 3, 0, 1)
LENGTH = 3
TARGET = TableTarget(VOCAB, order=2, seed=3, scale=1.0)
OTHER = TableTarget(VOCAB, order=2, seed=4, scale=1.0)
SAMPLES = 1800
"""A law with every cell off by a fifth (total variation 0.1) raises chi-square by 72, six times its spread of 11."""


def law_of(
    target: TableTarget, tokens: Sequence[int], params: SamplingParams, num_prompt: int = len(PROMPT)
) -> np.ndarray:
    processor = Processor(params, target.vocab_size)
    history = History(tokens[:num_prompt])
    history.extend(tokens[num_prompt:])
    return processor.law(torch.from_numpy(target.law(tokens)[None, :].copy()), [processor.start(history)])[0].numpy()


def joint(target: TableTarget, params: SamplingParams, length: int = LENGTH) -> dict[tuple[int, ...], float]:
    """The exact law of the first output tokens."""
    result = {}
    for block in itertools.product(range(target.vocab_size), repeat=length):
        probs = [law_of(target, [*PROMPT, *block[:place]], params)[token] for place, token in enumerate(block)]
        result[block] = math.prod(map(float, probs))
    return result


def sample(running: Engine, params: SamplingParams, speculation: Speculation, count: int) -> list[tuple[int, ...]]:
    blocks = []
    for first in range(0, count, 100):
        asked = [replace(params, seed=seed) for seed in range(first, min(first + 100, count))]
        requests = [running.submit(PROMPT, params, speculation)[0] for params in asked]
        finish(running)
        blocks += [tuple(request.output) for request in requests]
    return blocks


def excess(blocks: Sequence[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """Chi-square of the counts, as standard deviations above its mean; infinite where something impossible was seen."""
    count, rare, seen_rare, statistic, cells = len(blocks), 0.0, 0, 0.0, 0
    seen = {block: blocks.count(block) for block in set(blocks)}
    if any(law.get(block, 0.0) == 0 for block in seen):
        return math.inf
    for block, prob in law.items():
        if prob * count < 5:  # pooled
            rare, seen_rare = rare + prob, seen_rare + seen.get(block, 0)
        else:
            statistic, cells = statistic + (seen.get(block, 0) - prob * count) ** 2 / (prob * count), cells + 1
    if rare * count >= 1:
        statistic, cells = statistic + (seen_rare - rare * count) ** 2 / (rare * count), cells + 1
    return (statistic - (cells - 1)) / math.sqrt(2 * (cells - 1)) if cells > 1 else 0.0


def likes(token: int) -> Drafter:
    """Always proposes one token, whatever its probability."""
    return ScriptedDrafter(lambda _id, _tokens, budget: Proposal.chain([token] * budget, source="scripted"))


def argmax() -> Drafter:
    """Proposes the most probable tokens."""

    def script(_id: str, tokens: Sequence[int], budget: int) -> Proposal:
        ahead: list[int] = []
        for _ in range(budget):
            ahead.append(int(TARGET.law([*tokens, *ahead]).argmax()))
        return Proposal.chain(ahead, source="scripted")

    return ScriptedDrafter(script)


def broad() -> Drafter:
    """A tree of different tokens: three children and below the second of them two more."""

    def script(_id: str, tokens: Sequence[int], budget: int) -> Proposal:
        parents, ids = np.asarray([-1, -1, -1, 1, 1])[:budget], np.asarray([2, 0, 3, 1, 2])[:budget]
        kinds = np.full(len(ids), int(Draw.DETERMINISTIC))
        return Proposal(ids, parents, kinds, ("scripted",) * len(ids), np.ones(len(ids)))

    return ScriptedDrafter(script)


CASES = {
    "fixed token": (lambda: likes(1), Fixed(2), None),
    "argmax": (argmax, Fixed(3), None),
    "ngram": (lambda: NgramDrafter(3, 1), Fixed(2), None),
    "tree": (broad, Wide(5, 2, 3), None),
    "draft model": (lambda: DraftModel(OTHER, VOCAB), Fixed(2), None),
    "model tree": (lambda: DraftModel(OTHER, VOCAB), Wide(6, 2, 3), None),
    "greedy draft model": (lambda: DraftModel(OTHER, VOCAB), Fixed(2), Draw.DETERMINISTIC),
}


EXACT = [rule for rule in Rule if rule.is_exact]
TREES = ("tree", "model tree")
PAIRS = [(rule, name) for rule in EXACT for name in CASES if rule is not Rule.BLOCK or name not in TREES]
FEW = [pair for pair in PAIRS if pair[0] in (Rule.MATCH, Rule.TOKEN) or pair[1] in ("draft model", "model tree")]


@pytest.mark.parametrize(("rule", "name"), FEW)
def test_the_joint_law_of_a_block_is_the_target_s(rule: Rule, name: str) -> None:
    make, policy, draw = CASES[name]
    params = SamplingParams(temperature=1.5 if name == "argmax" else 1.0, max_tokens=LENGTH)
    running = engine(TARGET, [make()], policy, max_running=100)
    blocks = sample(running, params, Speculation(rule=rule, draw=draw), SAMPLES)
    assert excess(blocks, joint(TARGET, params)) < 3
    assert excess(blocks, joint(OTHER, params)) > 10  # the test would see a law that follows the draft
    assert running.stats.accepted > 0
    assert running.stats.rejections > 0


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "name"), PAIRS)
def test_the_joint_law_of_many_blocks_is_the_target_s(rule: Rule, name: str) -> None:
    make, policy, draw = CASES[name]
    running = engine(TARGET, [make()], policy, max_running=100)
    params = SamplingParams(max_tokens=LENGTH, temperature=0.8)
    assert excess(sample(running, params, Speculation(rule=rule, draw=draw), 20_000), joint(TARGET, params)) < 3


@pytest.mark.parametrize("rule", EXACT)
def test_penalties_on_a_path_are_part_of_the_law(rule: Rule) -> None:
    params = SamplingParams(
        temperature=0.9, presence_penalty=0.8, frequency_penalty=0.7, repetition_penalty=1.4, max_tokens=LENGTH
    )
    running = engine(TARGET, [DraftModel(OTHER, VOCAB)], Fixed(2), max_running=100)
    assert excess(sample(running, params, Speculation(rule=rule), SAMPLES), joint(TARGET, params)) < 3


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("cuts", [{"top_p": 0.7}, {"top_k": 2}, {"top_p": 0.7, "top_k": 2}, {"min_p": 0.3}])
def test_cuts_hold_for_every_row(temperature: float, cuts: dict[str, float]) -> None:
    # Drafts of every token, so that each is tried where the cuts forbid it.
    params = SamplingParams(temperature=temperature, max_tokens=2, **cuts)
    law = joint(TARGET, params, 2)
    for token in range(VOCAB):
        running = engine(TARGET, [likes(token)], Fixed(2), max_running=100)
        blocks = sample(running, params, Speculation(rule=Rule.TOKEN), 120)
        assert {block for block in blocks if law[block] == 0} == set()
        assert excess(blocks, law) < 4


def test_a_banned_token_never_appears_however_much_the_draft_likes_it() -> None:
    for params in (
        SamplingParams(temperature=1.0, logit_bias={1: -100.0}, max_tokens=8),
        SamplingParams(temperature=1.0, bad_words=[[1]], max_tokens=8),
    ):
        for rule in Rule:  # the approximate one too
            running = engine(TARGET, [likes(1)], Fixed(3), max_running=100)
            blocks = sample(running, params, Speculation(rule=rule), 100)
            assert all(1 not in block for block in blocks)
            assert running.stats.accepted == 0


def with_holes(last: tuple[int, ...]) -> np.ndarray:
    """A bigram table in which two of six tokens may follow each token."""
    row = np.full(6, -np.inf, dtype=np.float32)
    first = (last[-1] * 2 + 1) % 6
    row[[first, (first + 3) % 6]] = 0.0, 0.7
    return row


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("length", [1, 4])
def test_no_impossible_pair_of_tokens_is_emitted(length: int, rule: Rule) -> None:
    # openvinotoolkit/openvino.genai#4190: the token after a refusal came from the row behind the refused one.
    target, draft = TableTarget(6, order=1, logits=with_holes), TableTarget(6, order=1, seed=1, scale=0.5)
    for drafter in (DraftModel(draft, 6), likes(2), NgramDrafter(2, 1)):
        running = engine(target, [drafter], Fixed(length))
        params = SamplingParams(temperature=1.0, max_tokens=40)
        for seed in range(20):
            running.submit([1], replace(params, seed=seed), Speculation(rule=rule))
        requests = list(running.scheduler.waiting)
        finish(running)
        for request in requests:
            for first, second in itertools.pairwise(request.tokens):
                assert math.isfinite(with_holes((first,))[second])
            stats = request.stats
            assert stats.drafted == stats.accepted + stats.rejected + stats.discarded


@pytest.mark.parametrize("rule", Rule)
def test_a_draft_that_is_never_possible_is_never_accepted(rule: Rule) -> None:
    # huggingface/transformers PR 28508: drafts were counted as right whatever they were.
    def half(tokens: tuple[int, ...], first: int) -> np.ndarray:
        row = np.full(6, -np.inf, dtype=np.float32)
        row[first : first + 3] = TableTarget(3, order=1, seed=2).law(tokens)
        return row

    target = TableTarget(6, order=1, logits=lambda last: half(last, 0))
    draft = TableTarget(6, order=1, logits=lambda last: half(last, 3))
    running = engine(target, [DraftModel(draft, 6)], Fixed(3))
    request = run(running, [1], SamplingParams(temperature=1.0, seed=1, max_tokens=50), Speculation(rule=rule))
    assert request.stats.accepted == 0
    assert request.stats.rejections == request.stats.drafted_steps > 40
    assert set(request.output) <= {0, 1, 2}


# -- temperature 0 and near it -----------------------------------------------------------------------------------------


def test_at_temperature_0_all_rules_are_greedy() -> None:
    # jaymody/speculative-sampling#3: a token of probability 0.3 was accepted over the best one of 0.5.
    target = TableTarget(3, order=1, logits=lambda _last: np.log(np.asarray([0.3, 0.5, 0.2], dtype=np.float32)))
    draft = TableTarget(3, order=1, logits=lambda _last: np.log(np.asarray([0.4, 0.3, 0.3], dtype=np.float32)))
    for drafter in (DraftModel(draft, 3), likes(0)):
        for rule in Rule:
            request = run(
                engine(target, [drafter], Fixed(3)), [0], SamplingParams(max_tokens=9), Speculation(rule=rule)
            )
            assert request.output == [1] * 9
            assert request.stats.accepted == 0


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("drafter", ["draft model", "ngram", "tree", "model tree"])
def test_greedy_text_is_the_same_under_every_rule(drafter: str, rule: Rule) -> None:
    params = SamplingParams(max_tokens=30, presence_penalty=0.5)
    make, policy, _ = CASES[drafter]
    if rule is Rule.BLOCK and drafter in TREES:
        policy = Fixed(2)
    request = run(engine(TARGET, [make()], policy), PROMPT, params, Speculation(rule=rule))
    assert request.output == plain(TARGET, PROMPT, params)


@pytest.mark.parametrize("temperature", [0.0, 1e-8, 1e-6, 9e-6, 1e-5, 1e-3, 0.01])
def test_tiny_temperatures_are_greedy_and_never_divide_by_zero(temperature: float) -> None:
    def large(last: tuple[int, ...]) -> np.ndarray:
        return np.float32(1e4) * TARGET.law(last) / np.float32(3)

    target = TableTarget(VOCAB, order=2, logits=large)
    greedy = plain(target, PROMPT, SamplingParams(max_tokens=20))
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=20)
    for rule in Rule:
        for speculation in (Speculation(rule=rule), Speculation(rule=rule, off=True)):
            running = engine(target, [DraftModel(OTHER, VOCAB)], Fixed(3))
            assert run(running, PROMPT, params, speculation).output == greedy


@pytest.mark.parametrize("rule", [Rule.MATCH, Rule.TOKEN])
def test_a_draft_model_is_accepted_as_often_as_the_closed_form_says(rule: Rule) -> None:
    """Noise that is shared where it should not be, or not shared where it should be, shows in no text: only here."""
    target, other = TableTarget(32, order=2, seed=3, scale=1.0), TableTarget(32, order=2, seed=4, scale=1.0)

    def near(last: tuple[int, ...]) -> np.ndarray:
        return (target.law(last) + 0.5 * other.law(last)).astype(np.float32)

    draft = TableTarget(32, order=2, logits=near)
    running = engine(target, [DraftModel(draft, 32)], Fixed(4))
    params = SamplingParams(temperature=1.0, max_tokens=64)
    asked = [replace(params, seed=seed) for seed in range(24)]
    requests = [running.submit([1, 2, 3], each, Speculation(rule=rule))[0] for each in asked]
    finish(running)
    expected = []
    for request in requests:
        for place in range(request.num_prompt, len(request.tokens), 3):
            laws = [torch.softmax(torch.from_numpy(m.law(request.tokens[:place])).double(), 0) for m in (target, draft)]
            p, q = (law.numpy() for law in laws)
            expected.append(coupled_acceptance(p, q) if rule is Rule.MATCH else acceptance(p, q))
    assert running.stats.drafted_steps > 300
    assert running.stats.acceptance_rate == pytest.approx(np.mean(expected), abs=0.03)
