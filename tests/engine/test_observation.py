"""What drafters are shown of the target's rows is what a fresh pass over the committed text gives.

Written against vllm-project/vllm#14649 (draft-made features left at accepted positions), vllm-project/vllm#33299 (first
position), sgl-project/sglang PR 25015 (positions off by one): a drafter that reads features is fed committed rows only,
each once, in order.
"""

from collections.abc import Sequence

import pytest
import torch
from engine_helpers import PROMPT, VOCAB, SameText, Wide, decoder, engine, finish, fresh, plain

from outrider.core.params import SamplingParams
from outrider.core.types import Kept, Proposal
from outrider.drafters import scripted
from outrider.drafters.base import DraftContext, Needs, Observation
from outrider.drafters.scripted import ScriptedDrafter
from outrider.policies.fixed import Fixed

LAYERS, TOP_K = (0, 1), 4


class Reader(ScriptedDrafter):
    """Keeps all that it is shown."""

    needs = Needs(hidden_layers=LAYERS, top_k=TOP_K)

    def __init__(self, script: scripted.Script) -> None:
        super().__init__(script, name="reader")
        self.tokens: dict[str, list[int]] = {}
        self.hidden: dict[str, dict[int, list[torch.Tensor]]] = {}
        self.rows: dict[str, list[tuple[int, torch.Tensor, torch.Tensor, Kept]]] = {}
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.proposed: dict[str, Proposal] = {}

    def begin(self, request_id: str, tokens: Sequence[int]) -> None:
        self.begun.append(request_id)
        self.tokens[request_id], self.rows[request_id] = [], []
        self.hidden[request_id] = {layer: [] for layer in LAYERS}

    def propose(self, contexts: Sequence[DraftContext]) -> list[Proposal]:
        for context in contexts:
            seen = self.tokens[context.request_id]
            assert list(context.tokens[: len(seen)]) == seen
            if len(context.tokens) > context.num_prompt:
                assert len(seen) == len(context.tokens) - 1
        return super().propose(contexts)

    def observe(self, request_id: str, kept: Kept, observation: Observation) -> None:
        start = len(self.tokens[request_id])
        self.tokens[request_id] += observation.tokens
        for layer in LAYERS:
            assert len(observation.hidden[layer]) == len(observation.tokens)
            self.hidden[request_id][layer].append(observation.hidden[layer])
        if observation.top_tokens is not None:
            assert observation.top_tokens.shape == (len(observation.row_tokens), TOP_K)
            num_fed = len(observation.tokens) - len(kept.nodes)
            row = (start + num_fed - 1, observation.top_tokens, torch.as_tensor(observation.row_tokens), kept)
            self.rows[request_id].append(row)
        else:
            assert kept.tokens == ()

    def end(self, request_id: str) -> None:
        self.ended.append(request_id)


@pytest.mark.parametrize("chunk_tokens", [1, 3, 512])
@pytest.mark.parametrize("kind", ["right", "half", "tree", "nothing"])
def test_a_drafter_sees_the_rows_of_committed_tokens_once_and_in_order(kind: str, chunk_tokens: int) -> None:
    target, params = decoder(), SamplingParams(max_tokens=15)
    prompts = {"0-0": list(PROMPT), "1-0": [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 11]}
    texts = {name: [*prompt, *plain(target, prompt, SamplingParams(max_tokens=30))] for name, prompt in prompts.items()}
    scripts = {
        "right": scripted.all_right(texts),
        "half": scripted.wrong_half(texts, VOCAB),
        "tree": scripted.deep_tree(texts, 3, -1, VOCAB),
        "nothing": scripted.nothing(),
    }
    reader = Reader(scripts[kind])
    running = engine(target, [reader], Wide(12, 4, 3) if kind == "tree" else Fixed(4), chunk_tokens=chunk_tokens)
    requests = [running.submit(prompt, params)[0] for prompt in prompts.values()]
    finish(running)
    assert sorted(reader.begun) == sorted(reader.ended) == [*prompts]
    for request in requests:
        name = request.request_id
        committed = request.tokens[:-1]
        assert reader.tokens[name] == committed
        outputs, _, _ = fresh(target, request.tokens, LAYERS)
        for layer in LAYERS:
            seen = torch.cat(reader.hidden[name][layer])
            torch.testing.assert_close(seen, outputs.hidden[layer][:-1], rtol=0, atol=1e-5)
        _check_rows(reader, name, request.tokens, outputs.logits)


def _check_rows(reader: Reader, name: str, tokens: Sequence[int], logits: torch.Tensor) -> None:
    """The judged rows of the last fed token and of the accepted nodes."""
    top = logits.topk(TOP_K).indices
    assert reader.rows[name]
    for place, top_tokens, row_tokens, kept in reader.rows[name]:
        assert int(row_tokens[0]) == tokens[place]
        assert torch.equal(top_tokens[0], top[place])
        for depth, node in enumerate(kept.nodes, 1):
            assert int(row_tokens[1 + node]) == tokens[place + depth]
            assert torch.equal(top_tokens[1 + node], top[place + depth])


def test_a_preempted_request_is_shown_again_from_its_beginning() -> None:
    target, params = decoder(), SamplingParams(max_tokens=60)
    reader = Reader(
        scripted.wrong_half(SameText([*PROMPT, *plain(target, PROMPT, SamplingParams(max_tokens=90))]), VOCAB)
    )
    running = engine(target, [reader], Fixed(3), cache_tokens=96, max_nodes=4, prefix_tokens=0)
    requests = [running.submit(PROMPT, params)[0] for _ in range(3)]
    finish(running)
    assert len(reader.begun) > len(requests)
    for request in requests:
        assert reader.tokens[request.request_id] == request.tokens[:-1]
        assert request.output == plain(target, PROMPT, params)


def test_nothing_is_computed_for_drafters_that_want_nothing() -> None:
    target = decoder()
    running = engine(target, [ScriptedDrafter(scripted.nothing())])
    assert running.drafters.needs == Needs()
    mixed = engine(target, [ScriptedDrafter(scripted.nothing()), Reader(scripted.nothing())])
    assert mixed.drafters.needs == Needs(LAYERS, TOP_K)
