"""Trees of the draft model: shape, budget, passes and cache; their exactness is proven in tests/core."""

import numpy as np
import pytest
import torch
from drafters_helpers import NOTHING_SEEN, Spy, context, fresh_logits, kept, plan

from outrider.core.growth import allot, rank_values, survivors
from outrider.core.params import Draw, SamplingParams
from outrider.core.tree import children, depths, path, validate
from outrider.drafters.draft_model import DraftModel
from outrider.errors import InvalidRequestError, UnsupportedError
from outrider.models.toy import TableTarget, random_decoder

VOCAB, NAME, PROMPT = 16, "draft_model", [3, 1, 4, 1, 5]
WARM = SamplingParams(temperature=1.0)


def begun(model, tokens=PROMPT):
    drafter = DraftModel(model, VOCAB)
    drafter.load()
    drafter.begin("r", tokens)
    return drafter


def grow(drafter, tokens=PROMPT, budget=12, depth=4, width=3, params=WARM, **more):
    return drafter.propose([context(tokens, plan(NAME, budget, depth=depth, width=width), params=params, **more)])[0]


@pytest.mark.parametrize("draw", list(Draw))
@pytest.mark.parametrize(
    ("budget", "depth", "width"), [(12, 4, 3), (31, 6, 4), (31, 8, 2), (2, 4, 3), (7, 1, 4), (3, 5, 1)]
)
def test_trees_keep_to_their_plan_in_every_draw(draw, budget, depth, width):
    for seed in range(5):
        proposal = grow(
            begun(TableTarget(VOCAB, seed=seed)), budget=budget, depth=depth, width=width, draw=draw, seed=seed
        )
        validate(proposal, VOCAB)
        assert 0 < proposal.num_nodes <= budget
        assert depths(proposal.parents).max() <= depth
        assert max(map(len, children(proposal.parents))) <= width
        if draw is not Draw.IID:  # an i.i.d. sample may come twice
            for below in children(proposal.parents):
                assert len(set(proposal.tokens[below].tolist())) == len(below)


def test_one_pass_a_level_feeds_the_frontier_only():
    spy = Spy(TableTarget(VOCAB))
    proposal = grow(begun(spy), budget=10, depth=3, width=2, draw=Draw.IID)
    levels = depths(proposal.parents)
    assert [len(p.token_ids) for p in spy.passes[:1]] == [len(PROMPT)]
    assert len(spy.passes) == 3
    for level, seen in enumerate(spy.passes[1:], 1):
        assert len(seen.token_ids) <= (levels == level).sum()
        assert set(seen.positions.tolist()) == {len(PROMPT) + level - 1}
        assert len(seen.logits_rows) == len(seen.token_ids)


def test_the_nodes_are_those_with_the_largest_path_probability():
    model = TableTarget(VOCAB, seed=5)
    proposal = grow(begun(model), budget=8, depth=3, width=VOCAB, draw=Draw.DETERMINISTIC)
    values = {}
    frontier = {(): 1.0}
    for _ in range(3):
        grown = {}
        for text, value in frontier.items():
            row = model.law([*PROMPT, *text]).astype(np.float64)
            law = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
            grown |= {(*text, token): value * law[token] for token in range(VOCAB)}
        values |= grown
        frontier = grown
    best = sorted(values, key=lambda text: -values[text])[:8]
    drawn = [tuple(proposal.tokens[list(path(proposal.parents, node))].tolist()) for node in range(8)]
    assert set(drawn) == set(best)


def test_a_greedy_request_gets_the_runners_up_too():
    for draw in Draw:
        proposal = grow(begun(TableTarget(VOCAB)), draw=draw, params=SamplingParams(top_k=1), budget=6, depth=2)
        assert len(children(proposal.parents)[-1]) > 1
        assert set(proposal.draw.tolist()) == {int(Draw.DETERMINISTIC)}
        first = TableTarget(VOCAB).law(PROMPT).argmax()
        assert proposal.tokens[0] == first


@pytest.mark.parametrize("make", [lambda: TableTarget(VOCAB, order=3), lambda: decoder()], ids=["table", "decoder"])
@pytest.mark.parametrize("draw", [Draw.SHARED_NOISE, Draw.IID, Draw.DETERMINISTIC])
def test_the_cache_follows_whatever_path_was_emitted(make, draw):
    spy, tokens = Spy(make()), list(PROMPT)
    drafter, rng = begun(spy), np.random.default_rng(0)
    for number in range(12):
        proposal = grow(drafter, tokens, draw=draw, round_number=number)
        leaf = int(rng.integers(-1, proposal.num_nodes))
        block = proposal.tokens[list(path(proposal.parents, leaf))].tolist()
        if rng.random() < 0.5:
            block.append(int(rng.integers(VOCAB)))
        block = block or [7]
        tokens += block
        drafter.observe("r", kept(block), NOTHING_SEEN)
        again = grow(begun(make(), tokens), tokens, draw=draw, round_number=number)
        assert again.tokens.tolist() == grow(drafter, tokens, draw=draw, round_number=number).tokens.tolist()
        drafter.observe("r", kept([]), NOTHING_SEEN)


def decoder(invariant=True):
    return random_decoder(5, vocab_size=VOCAB, hidden=16, layers=2, heads=2, kv_heads=1, invariant=invariant)


def native():
    """The compiled layer, bfloat16."""
    try:
        return random_decoder(
            5, dtype=torch.bfloat16, vocab_size=VOCAB, hidden=96, heads=3, kv_heads=3, scale=0.1, kernels="native"
        )
    except (InvalidRequestError, UnsupportedError) as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    "make", [lambda: decoder(True), lambda: decoder(False), native], ids=["invariant", "plain", "native"]
)
@pytest.mark.parametrize("length", [5, 126, 250])
def test_a_tree_grown_level_by_level_has_the_logits_of_its_paths(make, length):
    """Rows of earlier levels lie in the cache; keys of other branches may not be seen."""
    model, prompt = make(), [n % VOCAB for n in range(length)]
    spy, logits = Spy(model), []
    forward = spy.forward

    def keeping(inputs, cache):
        outputs = forward(inputs, cache)
        logits.append(outputs.logits)
        return outputs

    spy.forward = keeping
    drafter = begun(spy, prompt)
    grow(drafter, prompt, budget=9, depth=4, width=3, draw=Draw.IID)
    text = drafter._texts["r"]
    rows = torch.cat(logits[1:])
    assert len(rows) == len(text.fed) > 4
    for row, node in zip(rows, text.fed, strict=True):
        line = [text.drafted[n] for n in path(np.asarray(text.parents), node)]
        fresh = fresh_logits(model, [*prompt, *line], 1)[0]
        assert torch.equal(row, fresh) if model.invariant else torch.allclose(row, fresh, atol=1e-4)


def test_shares_and_ranks():
    law = np.asarray([0.5, 0.3, 0.2, 0.0])
    assert rank_values(law, 5, Draw.IID) == [0.5, 0.3, 0.2]
    shared = rank_values(law, 3, Draw.SHARED_NOISE)
    assert shared[0] == 0.75
    assert sum(shared) < 1
    assert allot([[0.5, 0.3, 0.2], [0.4, 0.1], []], 3) == [2, 1, 0]
    assert allot([[0.5]], 0) == [0]
    free, sampled = int(Draw.DETERMINISTIC), int(Draw.IID)
    assert survivors([0.5, 0.3, 0.4], [free] * 3, 2) == [0, 2]
    assert survivors([0.5, 0.3, 0.4], [sampled] * 3, 2) == [0, 1, 2]
