"""Under MATCH the text is plain decoding's, token for token, whatever is drafted.

Written against huggingface/transformers#30042 and #30413 (greedy text differs with an assistant), sgl-project/sglang
PR 15360 (accepted nodes scattered in a tree), FasterDecoding/Medusa#99 and NVIDIA/TensorRT-LLM#1795 (the tree's shape
changes the text), ggml-org/llama.cpp#10174 (the target as its own draft), vllm-project/vllm#8071, #5313 and
mlc-ai/mlc-llm#2167 (garbage with a draft of the family), ml-explore/mlx-lm PR 1109 (first token), vllm-project/vllm
PR 10198 and #42744 (sampling settings that reach some rows only).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_helpers import (
    PROMPT,
    VOCAB,
    SameText,
    Wide,
    assert_idle,
    decoder,
    engine,
    finish,
    plain,
    run,
    run_lengths,
    table,
)

from outrider.core.params import Draw, SamplingParams, Speculation
from outrider.drafters import scripted
from outrider.drafters.base import Drafter
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.prediction import PredictionDrafter
from outrider.drafters.recycling import RecyclingDrafter
from outrider.drafters.scripted import ScriptedDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.models.base import Target
from outrider.models.toy import TableTarget, random_decoder
from outrider.policies.base import Policy
from outrider.policies.fixed import Fixed
from outrider.policies.heuristic import Heuristic

COUNT = 18
REDUCED = random_decoder(2, vocab_size=VOCAB, layers=1, hidden=16, heads=2, head_ids=range(1, VOCAB, 3))
GREEDY = SamplingParams(max_tokens=COUNT)
SAMPLINGS = {
    "greedy": GREEDY,
    "warm": SamplingParams(temperature=0.8, seed=5, max_tokens=COUNT),
    "top_p": SamplingParams(temperature=1.0, top_p=0.9, seed=6, max_tokens=COUNT),
    "top_k": SamplingParams(temperature=1.0, top_k=5, seed=7, max_tokens=COUNT),
    "min_p": SamplingParams(temperature=1.5, min_p=0.1, seed=8, max_tokens=COUNT),
    "penalties": SamplingParams(
        repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=0.6, temperature=0.9, seed=9, max_tokens=COUNT
    ),
    "greedy penalties": SamplingParams(presence_penalty=2.0, frequency_penalty=2.0, max_tokens=COUNT),
    "bias": SamplingParams(logit_bias={3: 4.0, 7: -100.0, 20: 2.5}, temperature=0.7, seed=10, max_tokens=COUNT),
    "bad words": SamplingParams(bad_words=[[7], [61, 48], [2, 3, 4]], temperature=1.0, seed=11, max_tokens=COUNT),
}
SHAPES = {  # parents and the right path
    "last child of two": ([-1, -1, 1, 1, 3, 3], [1, 3, 5]),
    "last child of four": ([-1] * 4 + [3] * 4 + [7] * 4, [3, 7, 11]),
    "middle child": ([-1, -1, -1, 1, 1, 1, 4, 4, 4], [1, 4, 7]),
    "sparse": ([-1, -1, 0, 0, 1, 1, 5, 5, 6, 3], [1, 5, 7]),
    "right path breaks off": ([-1, -1, 1, 1, 2, 3], [1, 3]),
    "all wrong": ([-1, -1, 0, 1, 1, 2], []),
    "broad": ([-1] * 8, [6]),
}


def chains() -> dict[str, object]:
    """Name -> a function of the known text that gives a script."""
    cases = {
        "all right": scripted.all_right,
        "all wrong": lambda texts: scripted.wrong_half(texts, VOCAB, probability=1.1),
        "half wrong": lambda texts: scripted.wrong_half(texts, VOCAB, seed=3),
        "short": lambda texts: scripted.short(texts, 2),
        "empty": lambda texts: scripted.nothing(),
        "illegal": lambda texts: scripted.illegal_at(texts, 2, VOCAB),
        "negative id": lambda texts: scripted.illegal_at(texts, 0, -1),
    }
    for place in range(8):
        cases[f"wrong at {place}"] = lambda texts, place=place: scripted.wrong_at(texts, place, VOCAB)
    return cases


CHAINS = chains()


def models(target: Target) -> dict[str, Drafter]:
    return {
        "ngram": NgramDrafter(3, 1),
        "suffix": SuffixDrafter(shared=500),
        "recycling": RecyclingDrafter(shared=True),
        "the target": DraftModel(target, VOCAB),
        "other weights": DraftModel(decoder(2, layers=1), VOCAB),
        "less padding": DraftModel(decoder(2, 48), VOCAB),
        "more padding": DraftModel(decoder(2, 80), VOCAB),
        "few common ids": DraftModel(decoder(2, 80), VOCAB, num_tokens=40),
        "reduced head": DraftModel(REDUCED, VOCAB),
    }


MODELS = [*models(decoder())]
POLICIES = {"fixed": lambda: Fixed(8), "heuristic": lambda: Heuristic(3, 8)}


def check(
    target: Target, drafter: Drafter, policy: Policy, params: SamplingParams, end_ids: Sequence[int] = ()
) -> None:
    running = engine(target, [drafter], policy, end_ids=end_ids)
    expected = plain(target, PROMPT, params, end_ids=end_ids)
    for request in run_lengths(running, PROMPT, params):
        assert request.output == expected
    assert not running.drafters.num_failures or "illegal" in drafter.name
    assert_idle(running)


def known(target: Target, params: SamplingParams) -> SameText:
    """The right text and more, so that drafts reach beyond its end."""
    return SameText([*PROMPT, *plain(target, PROMPT, replace(params, max_tokens=COUNT + 10))])


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", MODELS)
def test_models_and_lookups_change_nothing(name: str, sampling: str) -> None:
    target, params = decoder(), SAMPLINGS[sampling]
    policy = POLICIES["heuristic" if name in ("ngram", "recycling") else "fixed"]()
    check(target, models(target)[name], policy, params, range(1, 9) if name in ("ngram", "the target") else (1, 2, 5))


FREE = {
    "ngram": lambda: NgramDrafter(3, 1),
    "suffix": lambda: SuffixDrafter(shared=500),
    "prediction": PredictionDrafter,
    "recycling": lambda: RecyclingDrafter(shared=True),
}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("name", [*FREE, "all"])
def test_free_drafters_change_nothing_as_chains_and_as_trees(name: str, width: int, sampling: str) -> None:
    target, params = decoder(), SAMPLINGS[sampling]
    expected = plain(target, PROMPT, params)
    predictions = [expected, [*expected[:5], 1, *expected[9:]], expected[::-1], [3]]
    drafters = [make() for label, make in FREE.items() if name in (label, "all")]
    running = engine(target, drafters, Wide(8, 8, width))
    follows = running.drafters.needs.prediction
    for prediction in predictions:
        request = running.submit(PROMPT, params, prediction=prediction if follows else None)[0]
        finish(running)
        assert request.output == expected
        if prediction is expected and name in ("prediction", "all"):
            assert request.stats.steps < COUNT // 2
    assert not running.drafters.num_failures
    assert_idle(running)


@pytest.mark.parametrize("draw", [Draw.DETERMINISTIC, Draw.SHARED_NOISE, Draw.IID])
@pytest.mark.parametrize("name", ["the target", "less padding"])
def test_how_a_draft_model_draws_changes_nothing(name: str, draw: Draw) -> None:
    target, params = decoder(), SAMPLINGS["penalties"]
    running = engine(target, [models(target)[name]], Fixed(4))
    assert run(running, PROMPT, params, Speculation(draw=draw)).output == plain(target, PROMPT, params)


@pytest.mark.parametrize("sampling", ["greedy", "penalties"])
@pytest.mark.parametrize("name", CHAINS)
def test_scripted_chains_change_nothing(name: str, sampling: str) -> None:
    target, params = decoder(), SAMPLINGS[sampling]
    policy = POLICIES["heuristic" if "half" in name else "fixed"]()
    label = "illegal" if "illegal" in name or "negative" in name else "scripted"
    check(target, ScriptedDrafter(CHAINS[name](known(target, params)), name=label), policy, params)


@pytest.mark.parametrize("sampling", ["greedy", "penalties", "top_p"])
@pytest.mark.parametrize("name", SHAPES)
def test_trees_change_nothing(name: str, sampling: str) -> None:
    target, params = decoder(), SAMPLINGS[sampling]
    parents, right = SHAPES[name]
    script = scripted.tree(known(target, params), parents, right, VOCAB)
    check(target, ScriptedDrafter(script), Wide(12, 4, 8), params)


@pytest.mark.parametrize("draw", list(Draw))
@pytest.mark.parametrize("sampling", ["greedy", "penalties"])
def test_trees_of_a_draft_model_change_nothing(sampling: str, draw: Draw) -> None:
    target, params = decoder(), SAMPLINGS[sampling]
    running = engine(target, [DraftModel(decoder(2, layers=1), VOCAB), NgramDrafter(3, 1)], Fixed(4))
    asked = [Speculation(draw=draw, tree=tree) for tree in ("2x6", "3x12", "4x31")]
    requests = [running.submit(PROMPT, params, speculation)[0] for speculation in asked]
    finish(running)
    for request in requests:
        assert request.output == plain(target, PROMPT, params)
        assert request.stats.drafted_by["draft_model"] > 2 * request.stats.drafted_steps
    assert not running.drafters.num_failures
    assert_idle(running)


@pytest.mark.parametrize("child", [0, 1, -1])
@pytest.mark.parametrize("width", [2, 4])
def test_deep_trees_change_nothing_wherever_the_right_child_is(width: int, child: int) -> None:
    target, params = decoder(), SAMPLINGS["warm"]
    script = scripted.deep_tree(known(target, params), width, child, VOCAB)
    running = engine(target, [ScriptedDrafter(script)], Wide(16, 8, 8))
    request = run(running, PROMPT, params)
    assert request.output == plain(target, PROMPT, params)
    assert request.stats.accepted_by["scripted"] == request.stats.accepted > COUNT // 2


@pytest.mark.parametrize("policy", POLICIES)
def test_several_drafters_in_one_plan_change_nothing(policy: str) -> None:
    target, params = decoder(), SAMPLINGS["warm"]
    texts = known(target, params)
    drafters = [
        NgramDrafter(3, 1),
        ScriptedDrafter(scripted.wrong_half(texts, VOCAB, seed=1), name="one"),
        ScriptedDrafter(scripted.wrong_half(texts, VOCAB, seed=2), name="two"),
    ]
    for chooser in (POLICIES[policy](), Wide(8, 4, 4)):
        running = engine(target, drafters, chooser)
        for request in run_lengths(running, PROMPT, params):
            assert request.output == plain(target, PROMPT, params)


@pytest.mark.parametrize("num_prompt", [1, 2, 5, 16, 17, 129])
def test_prompts_of_any_length_begin_with_the_same_token(num_prompt: int) -> None:
    target = decoder()
    prompt = [(7 * place + 3) % VOCAB for place in range(num_prompt)]
    params = SamplingParams(max_tokens=12)
    for drafter in (NgramDrafter(3, 1), DraftModel(target, VOCAB)):
        running = engine(target, [drafter], Fixed(4))
        on = running.submit(prompt, params)[0]
        off = running.submit(prompt, params, Speculation(off=True))[0]
        finish(running)
        assert on.output == off.output == plain(target, prompt, params)


def test_drafts_may_be_bigger_or_equal_or_of_another_family() -> None:
    # ggml-org/llama.cpp#10174: the same file for both gave one token, then nothing.
    target = decoder()
    for model in (target, decoder(3, layers=4), table(4)):
        request = run(engine(target, [DraftModel(model, VOCAB)], Fixed(3)), PROMPT, GREEDY)
        assert request.output == plain(target, PROMPT, GREEDY)
        assert request.finish_reason == "length"


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_bfloat16_text_is_the_same_at_every_width_where_rows_are_invariant(family: str) -> None:
    # vllm-project/vllm#7627, ml-explore/mlx-lm#1470, ggml-org/llama.cpp#27407: rounding follows the width of the pass.
    target = random_decoder(4, dtype=torch.bfloat16, hidden=32, invariant=True, family=family)
    params = SamplingParams(max_tokens=40)
    off = run(engine(target), PROMPT, params, Speculation(off=True)).output
    texts = SameText([*PROMPT, *off])
    for script in (
        scripted.all_right(texts),
        scripted.wrong_half(texts, VOCAB),
        scripted.deep_tree(texts, 3, -1, VOCAB),
    ):
        running = engine(target, [ScriptedDrafter(script)], Wide(12, 8, 3))
        assert [request.output for request in run_lengths(running, PROMPT, params)] == [off] * 8


def test_an_exact_tie_goes_to_the_lowest_id_on_every_path() -> None:
    def tied(last: tuple[int, ...]) -> "np.ndarray":
        row = np.zeros(VOCAB, dtype=np.float32)
        row[[(7 * last[-1] + 3) % VOCAB, (5 * last[-1] + 1) % VOCAB, 60]] = 2.0
        return row

    target = TableTarget(VOCAB, order=1, logits=tied)
    expected = plain(target, PROMPT, GREEDY)
    for before, after in zip([PROMPT[-1], *expected], expected, strict=False):
        assert after == min((7 * before + 3) % VOCAB, (5 * before + 1) % VOCAB, 60)
    for drafter in (DraftModel(target, VOCAB), ScriptedDrafter(scripted.wrong_half(known(target, GREEDY), VOCAB))):
        check(target, drafter, Fixed(8), GREEDY)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", [*MODELS, *CHAINS, *SHAPES])
@pytest.mark.parametrize("kind", ["decoder", "table"])
def test_the_whole_product(kind: str, name: str, policy: str, sampling: str) -> None:
    target, params = decoder() if kind == "decoder" else table(), SAMPLINGS[sampling]
    texts, chooser, label = known(target, params), POLICIES[policy](), "scripted"
    if name in MODELS:
        drafter = models(target)[name]
    elif name in SHAPES:
        drafter, chooser = ScriptedDrafter(scripted.tree(texts, *SHAPES[name], VOCAB)), Wide(12, 4, 8)
    else:
        label = "illegal" if "illegal" in name or "negative" in name else label
        drafter = ScriptedDrafter(CHAINS[name](texts), name=label)
    check(target, drafter, chooser, params)
