"""Text of transformers' models through the engine: drafted or not, alone or together, it is the library's own.

Written against vllm-project/vllm#39273, huggingface/transformers#49036, ml-explore/mlx-lm PR 1486 (recurrent state that
is not restored after a rejected draft), ml-explore/mlx-swift-lm#424 and ml-explore/mlx-lm#1423 (a window's cache that
cannot be cut once it is full), Blaizzy/mlx-vlm#1144 (a batch of different acceptance).
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers
from engine_helpers import Wide, assert_idle, decoder, engine, finish

from library_models import CUTTABLE, REPLAYED, VOCAB, library_target, library_text
from outrider.cache.kv import KVCache
from outrider.core.params import SamplingParams, Speculation
from outrider.core.types import Proposal
from outrider.drafters import scripted
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.scripted import ScriptedDrafter
from outrider.engine.engine import Engine
from outrider.engine.reference import reference_generate
from outrider.models.decoder import Decoder
from outrider.models.toy import random_source, toy_config
from outrider.models.transformers_target import transformers_target
from outrider.policies.fixed import Fixed

COUNT = 20
PARAMS = SamplingParams(max_tokens=COUNT)
PROMPTS = [[5, 9, 5, 9, 5, 9, 11, 13, 5, 9], [7], [20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34]]
ALL = [*CUTTABLE, *REPLAYED]
WINDOWED = [name for name in CUTTABLE if "window" in name or "chunks" in name or "sinks" in name]


class Known(dict[str, Sequence[int]]):
    """Texts of the requests, as the library writes them."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def submit(self, running: Engine, prompt: Sequence[int], length: int | None = None) -> Any:
        (request,) = running.submit(prompt, PARAMS, Speculation(length=length))
        self[request.request_id] = [*prompt, *library_text(self.name, prompt, COUNT + 8)]
        return request


def check(texts: Known, running: Engine, requests: Sequence[Any]) -> None:
    finish(running, running.cache.check_integrity)  # type: ignore[attr-defined]
    assert not running.drafters.num_failures
    for request in requests:
        whole = texts[request.request_id][: request.num_prompt + COUNT]
        assert request.tokens == whole
    assert_idle(running)


@pytest.mark.parametrize("drafted", [False, True], ids=["plain", "ngram"])
@pytest.mark.parametrize("name", ALL)
def test_text_is_that_of_the_library(name: str, drafted: bool) -> None:
    texts = Known(name)
    running = engine(library_target(name), [NgramDrafter(3, 1)] if drafted else [], Fixed(4), chunk_tokens=7)
    requests = [texts.submit(running, prompt) for prompt in PROMPTS]
    check(texts, running, requests)


@pytest.mark.parametrize("name", [*WINDOWED, *REPLAYED])
def test_drafts_that_are_wrong_at_each_place_leave_nothing_behind(name: str) -> None:
    texts = Known(name)
    rounds = dict.fromkeys("012", 0)

    def rotating(request_id: str, tokens: Sequence[int], budget: int) -> Proposal:
        number = request_id[0]
        rounds[number] += 1
        place = (int(number) + rounds[number]) % 5
        return scripted.wrong_at(texts, place, VOCAB)(request_id, tokens, min(4, budget))

    running = engine(library_target(name), [ScriptedDrafter(rotating)], Fixed(4))
    requests = [texts.submit(running, prompt) for prompt in PROMPTS]
    check(texts, running, requests)
    assert {length for request in requests for length in request.stats.lengths} >= {0, 2, 4}


@pytest.mark.parametrize("child", [0, 2])
@pytest.mark.parametrize("name", [*WINDOWED, *REPLAYED])
def test_trees_change_nothing(name: str, child: int) -> None:
    texts = Known(name)
    running = engine(
        library_target(name), [ScriptedDrafter(scripted.deep_tree(texts, 3, child, VOCAB))], Wide(12, 4, 3)
    )
    requests = [texts.submit(running, prompt) for prompt in PROMPTS]
    check(texts, running, requests)
    assert sum(request.stats.accepted for request in requests) > COUNT


@pytest.mark.parametrize("name", ["gemma2, alternating window, soft caps", "lfm2", "mamba2", "jamba, one token a pass"])
def test_preempted_requests_write_the_same_text(name: str) -> None:
    texts = Known(name)
    running = engine(library_target(name), [NgramDrafter(3, 1)], Fixed(4), cache_tokens=96, max_nodes=4)
    lost: list[Any] = []
    requests = [texts.submit(running, prompt) for prompt in PROMPTS]
    while running.num_unfinished:
        running.step()
        lost += running.scheduler.preempted
    assert lost
    check(texts, running, requests)


@pytest.mark.parametrize("drafter", ["chain", "tree", "ngram", "self"])
def test_our_decoder_and_the_library_write_the_same_text_of_the_same_weights(drafter: str) -> None:
    config = toy_config(hidden=36, heads=9, kv_heads=3, layers=3)  # SmolLM2's shape, smaller
    source = random_source(config, 3)
    own = Decoder(config, source, dtype=torch.float32)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            rms_norm_eps=config.norm_eps,
            max_position_embeddings=config.context_length,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
        )
    )
    model.load_state_dict({name: source.tensor(name) for name in source.names()}, strict=False)
    target = transformers_target(model)
    assert isinstance(target.make_cache(), KVCache)
    texts = {
        f"{number}-0": [*prompt, *reference_generate(own, prompt, SamplingParams(max_tokens=COUNT + 8))]
        for number, prompt in enumerate(PROMPTS)
    }
    drafters = {
        "chain": lambda: ScriptedDrafter(scripted.wrong_half(texts, VOCAB, probability=0.3)),
        "tree": lambda: ScriptedDrafter(scripted.deep_tree(texts, 3, 1, VOCAB)),
        "ngram": lambda: NgramDrafter(3, 1),
        "self": lambda: DraftModel(target, VOCAB),
    }
    running = engine(target, [drafters[drafter]()], Wide(12, 4, 3) if drafter == "tree" else Fixed(4))
    requests = [running.submit(prompt, PARAMS)[0] for prompt in PROMPTS]
    finish(running)
    for request in requests:
        assert request.tokens == texts[request.request_id][: request.num_prompt + COUNT]


@pytest.mark.parametrize("name", ["gpt2", "mistral, window", "lfm2", "jamba, one token a pass"])
def test_a_library_s_model_may_draft_for_our_decoder(name: str) -> None:
    target = decoder()
    running = engine(target, [DraftModel(library_target(name), VOCAB, chunk=4)], Fixed(4))
    requests = [running.submit(prompt, PARAMS)[0] for prompt in PROMPTS]
    finish(running)
    for request, prompt in zip(requests, PROMPTS, strict=True):
        assert request.output == reference_generate(target, prompt, PARAMS)
        assert request.stats.drafted > 0
    assert_idle(running)


@pytest.mark.parametrize("name", ["gpt2", "falcon_h1", "jamba, one token a pass"])
def test_a_library_s_model_agrees_with_itself_as_its_own_draft(name: str) -> None:
    target = library_target(name)
    texts = Known(name)
    running = engine(target, [DraftModel(target, VOCAB)], Fixed(3))
    requests = [texts.submit(running, prompt) for prompt in PROMPTS]
    check(texts, running, requests)
    for request in requests:  # all is accepted but what the end of the text cuts off
        assert request.stats.accepted == COUNT - request.stats.steps


def test_sampled_text_is_the_same_with_and_without_drafts() -> None:
    params = SamplingParams(max_tokens=COUNT, temperature=0.8, top_p=0.95, seed=4)
    for name in ("gemma3, window", "qwen3_next"):
        target = library_target(name)
        expected = [reference_generate(target, prompt, params) for prompt in PROMPTS]
        running = engine(target, [NgramDrafter(3, 1)], Fixed(4))
        requests = [running.submit(prompt, params)[0] for prompt in PROMPTS]
        finish(running)
        assert [request.output for request in requests] == expected
