"""A seed decides a text, whatever surrounds the request.

Written against vllm-project/vllm#6038, #13196 and NVIDIA/TensorRT-LLM PR 17599 (the seed is ignored), vllm-project/vllm
#6137 and PR 6138, huggingface/transformers#29769 and #32165 (several outputs a prompt), vllm-project/vllm#42517 and
others (neighbours change the text).
"""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from engine_helpers import PROMPT, VOCAB, Listening, SameText, Wide, decoder, engine, finish, plain, run

from outrider.core.params import Rule, SamplingParams, Speculation
from outrider.drafters import scripted
from outrider.drafters.base import Drafter
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.scripted import ScriptedDrafter
from outrider.engine.engine import Engine
from outrider.policies.fixed import Fixed
from outrider.policies.heuristic import Heuristic

PARAMS = SamplingParams(temperature=0.9, seed=42, max_tokens=20)


def build(*, length: int = 4, heuristic: bool = False) -> Engine:
    policy = Heuristic(2, 8) if heuristic else Fixed(length)
    return engine(decoder(), [NgramDrafter(3, 1), DraftModel(decoder(2), VOCAB)], policy)


def test_the_same_seed_gives_the_same_text_in_any_surroundings() -> None:
    alone = run(build(), PROMPT, PARAMS).output
    assert alone == plain(decoder(), PROMPT, PARAMS)
    later = build()
    for number in range(10):
        run(later, [number, 2, 3], replace(PARAMS, seed=None, max_tokens=3 + number))
    assert run(later, PROMPT, PARAMS).output == alone
    for heuristic in (False, True):
        crowded = build(heuristic=heuristic, length=7)
        prompts = [[9, 9, 9], PROMPT, [1], list(range(20))]
        requests = [crowded.submit(prompt, PARAMS)[0] for prompt in prompts]
        finish(crowded)
        assert requests[1].output == alone
        for prompt, request in zip(prompts, requests, strict=True):
            assert request.output == plain(decoder(), prompt, PARAMS)


def test_requests_of_every_rule_and_setting_share_a_pass() -> None:
    running = build()
    asked = [
        (PARAMS, Speculation()),
        (PARAMS, Speculation(rule=Rule.TOKEN)),
        (replace(PARAMS, temperature=0.0), Speculation(length=1)),
        (replace(PARAMS, top_k=3), Speculation(off=True)),
        (replace(PARAMS, top_p=0.5, presence_penalty=1.0), Speculation(drafters=("ngram",))),
        (replace(PARAMS, logit_bias={3: 5.0}), Speculation(drafters=("draft_model",), rule=Rule.TOKEN)),
    ]
    requests = [running.submit(PROMPT, params, speculation)[0] for params, speculation in asked]
    finish(running)
    for (params, speculation), request in zip(asked, requests, strict=True):
        assert request.num_output == PARAMS.max_tokens
        if speculation.rule is Rule.MATCH:
            assert request.output == plain(decoder(), PROMPT, params)
        if speculation.off:
            assert request.stats.drafted == 0
        if speculation.drafters is not None:
            assert set(request.stats.drafted_by) <= set(speculation.drafters)


def test_different_seeds_differ() -> None:
    texts = {tuple(run(build(), PROMPT, replace(PARAMS, seed=seed)).output) for seed in (0, 1, 2, -1, 2**62, 42)}
    assert len(texts) == 6


@pytest.mark.parametrize("rule", Rule)
def test_choices_are_independent_and_each_can_be_had_again(rule: Rule) -> None:
    # vllm-project/vllm#6137: requests for several outputs failed, or turned speculation off for everybody.
    running = build()
    (neighbour,) = running.submit([4, 5, 6], PARAMS)
    three = running.submit(PROMPT, replace(PARAMS, n=3), Speculation(rule=rule))
    finish(running)
    texts = [request.output for request in three]
    assert len({tuple(text) for text in texts}) == 3
    assert neighbour.output == plain(decoder(), [4, 5, 6], PARAMS)
    assert neighbour.stats.drafted > 0
    for request in three:
        assert request.seed == 42
        assert request.stats.drafted > 0
    if rule is Rule.MATCH:
        assert texts == [plain(decoder(), PROMPT, PARAMS, choice=choice) for choice in range(3)]
    two = build().submit(PROMPT, replace(PARAMS, n=2), Speculation(rule=rule))
    alone = build()
    again = alone.submit(PROMPT, replace(PARAMS, n=2), Speculation(rule=rule))
    finish(alone)
    assert [request.output for request in again] == texts[:2]
    assert len({request.request_id for request in two}) == 2


def test_without_a_seed_one_is_drawn_and_reported() -> None:
    running = build()
    params = replace(PARAMS, seed=None)
    first, second = run(running, PROMPT, params), run(running, PROMPT, params)
    assert first.seed != second.seed
    assert first.output != second.output
    assert run(build(length=7), PROMPT, replace(params, seed=first.seed)).output == first.output
    greedy = replace(params, temperature=0.0)
    assert run(running, PROMPT, greedy).output == run(running, PROMPT, greedy).output


@pytest.mark.parametrize("rule", Rule)
def test_the_law_exact_rules_repeat_themselves_too(rule: Rule) -> None:
    first = run(build(), PROMPT, PARAMS, Speculation(rule=rule))
    again = run(build(), PROMPT, PARAMS, Speculation(rule=rule))
    assert first.output == again.output
    off = run(build(), PROMPT, PARAMS, Speculation(rule=rule, off=True))
    assert off.num_output == first.num_output


def test_a_policy_s_cuts_do_not_touch_the_text() -> None:
    target, texts = decoder(), SameText([*PROMPT, *plain(decoder(), PROMPT, replace(PARAMS, max_tokens=40))])

    class Cutting(Listening):
        """Admits every other prefix only."""

        def admit(self, shapes, views):
            admitted = super().admit(shapes, views)
            return [nodes[: len(self.outcomes) % 3] for nodes in admitted]

    drafters: list[Drafter] = [ScriptedDrafter(scripted.deep_tree(texts, 2, -1, VOCAB))]
    running = engine(target, drafters, Cutting(Wide(8, 4, 2)))
    request = run(running, PROMPT, PARAMS)
    assert request.output == plain(target, PROMPT, PARAMS)
    assert max(request.stats.lengths) <= 1


def test_the_text_is_the_same_in_every_process() -> None:
    # sgl-project/sglang#39597: kernels were chosen anew, and differently, at each start.
    script = f"""
import sys, torch
sys.path.insert(0, {str(Path(__file__).parent)!r})
torch.set_num_threads(1)
from engine_helpers import PROMPT, run
from test_seeds import PARAMS, build
print(*run(build(), PROMPT, PARAMS).output)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert list(map(int, result.stdout.split())) == run(build(), PROMPT, PARAMS).output
