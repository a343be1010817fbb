"""The rows of a pass, the laws that are pulled from its logits, and what passes cost."""

import dataclasses

import numpy as np
import pytest
import torch
from engine_helpers import VOCAB, decoder

from outrider.core.coins import BatchCoins
from outrider.core.params import Rule, SamplingParams, Speculation
from outrider.core.types import Proposal
from outrider.core.verify import STEPS, verify
from outrider.drafters.base import Needs
from outrider.engine.batch import BatchLaws, asks_for_best, pack, token_logprobs
from outrider.engine.calibrate import measure_passes, read_bandwidth
from outrider.engine.request import Request
from outrider.engine.scheduler import Item
from outrider.engine.text import TextAssembler
from outrider.errors import InvalidRequestError


def item(slot: int, num_tokens: int, num_cached: int, end: int, rule: Rule = Rule.MATCH, **params: object) -> Item:
    request = Request(
        str(slot),
        list(range(10, 10 + num_tokens)),
        SamplingParams(**params),
        Speculation(rule=rule),
        vocab_size=VOCAB,
        context_length=100,
        end_ids=frozenset(),
        seed=1,
        text=TextAssembler(None),
    )
    return Item(request, slot, num_cached, end, 8)


def tree(tokens: list[int], parents: list[int]) -> Proposal:
    count = len(tokens)
    zeros = np.zeros(count, dtype=np.int64)
    return Proposal(np.asarray(tokens), np.asarray(parents), zeros, ("x",) * count, np.ones(count))


ITEMS = [item(3, 6, 4, 6), item(0, 20, 5, 9), item(1, 3, 2, 3), item(2, 5, 4, 5)]
PROPOSALS = [tree([40, 41, 42], [-1, -1, 0]), Proposal.chain([50, 51], source="x"), Proposal.empty()]


def test_a_pass_is_flat_and_ragged() -> None:
    inputs = pack(ITEMS, PROPOSALS, (1,))
    assert inputs.token_ids.tolist() == [14, 15, 40, 41, 42, 15, 16, 17, 18, 12, 50, 51, 14]
    assert inputs.positions.tolist() == [4, 5, 6, 6, 7, 5, 6, 7, 8, 2, 3, 4, 4]
    assert inputs.logits_rows.tolist() == [1, 2, 3, 4, 9, 10, 11, 12]
    assert [(s.slot, s.start, s.num_rows, s.num_cached) for s in inputs.segments] == [
        (3, 0, 5, 4),
        (0, 5, 4, 5),
        (1, 9, 3, 2),
        (2, 12, 1, 4),
    ]
    assert [s.parents is None for s in inputs.segments] == [False, True, True, True]
    assert inputs.hidden_layers == (1,)


def test_a_pass_of_prompt_chunks_only_wants_no_logits() -> None:
    inputs = pack([ITEMS[1]], [])
    assert inputs.logits_rows.tolist() == []
    assert inputs.token_ids.tolist() == [15, 16, 17, 18]


def test_each_node_has_the_law_of_its_own_row_and_path() -> None:
    judged = [item(3, 6, 4, 6, presence_penalty=2.0, temperature=1.0), ITEMS[2], ITEMS[3]]
    logits = torch.randn(8, VOCAB, generator=torch.Generator().manual_seed(1))
    logits[3, 41] = logits[:4].max() + 1  # node 1 holds 41: penalised behind it, and nowhere else
    laws = BatchLaws(logits, judged, PROPOSALS)
    assert laws.bases[:3] == [0, 4, 7]
    assert np.array_equal(laws.row(0, 2), logits[3].numpy())
    rows = torch.from_numpy(laws.at(np.asarray([0, 0, 0, 1, 2]), np.asarray([-1, 1, 2, 0, -1])))
    penalised = logits[2].clone()
    penalised[41] -= 2
    torch.testing.assert_close(rows[0], logits[0].softmax(-1))
    torch.testing.assert_close(rows[1], penalised.softmax(-1))
    behind = logits[3].clone()
    behind[[40, 42]] -= 2
    torch.testing.assert_close(rows[2], behind.softmax(-1))
    assert rows[3].argmax() == logits[5].argmax()
    assert rows[4].argmax() == logits[7].argmax()


def test_where_the_best_is_known_it_is_the_only_token_and_no_other_law_exists() -> None:
    judged = [ITEMS[0], ITEMS[2], ITEMS[3]]
    best = np.asarray([40, 7, -1, 9, 50, 51, 8, -1])
    laws = BatchLaws(torch.empty(0, VOCAB), judged, PROPOSALS, best)
    assert laws.knows_best
    assert not laws.can_race
    assert [laws.only_token(0, node) for node in (-1, 0, 1, 2)] == [40, 7, None, 9]
    assert laws.only_token(2, -1) is None
    assert np.isnan(laws.at(np.asarray([0, 2]), np.asarray([1, -1]))).all()
    results = verify([Rule.MATCH] * 3, laws, PROPOSALS, BatchCoins([i.request.stream for i in judged]), [6, 3, 5])
    assert [result.nodes for result in results] == [(0,), (0, 1), ()]
    assert [result.ended for result in results] == ["correction", "bonus", "invalid"]
    assert [result.next_token for result in results[:2]] == [7, 8]


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.5},
        {"logit_bias": {3: 1.0}},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"bad_words": [(3,)]},
        {"bad_words": [(3, 4)]},
        {"min_tokens": 2},
        {"logprobs": 0},
    ],
)
def test_whoever_needs_more_than_the_best_asks_for_logits(params: dict[str, object]) -> None:
    assert asks_for_best(ITEMS, Needs())
    assert not asks_for_best([], Needs())
    assert not asks_for_best(ITEMS, Needs(top_k=1))
    assert not asks_for_best([ITEMS[0], item(1, 3, 2, 3, **params)], Needs())
    planted = dataclasses.replace(STEPS, sample=lambda *given: STEPS.sample(*given))
    assert not asks_for_best(ITEMS, Needs(), planted)
    rules = [rule for rule in Rule if rule is not Rule.MATCH]
    for rule in rules:
        assert not asks_for_best([item(1, 3, 2, 3, rule=rule)], Needs())


def test_log_probabilities_of_a_row() -> None:
    row = torch.log(torch.tensor([0.1, 0.6, 0.3]))
    entry = token_logprobs(row, 0, 2)
    assert entry.logprob == pytest.approx(np.log(0.1))
    assert [token for token, _ in entry.top] == [1, 2]


def test_costs_of_passes_are_measured_for_each_width_and_context() -> None:
    ticks = []
    costs = measure_passes(decoder(), [1, 4], [3, 600 - 200], repeats=2, tick=lambda: ticks.append(1))
    assert [(cost.width, cost.context) for cost in costs] == [(1, 3), (4, 3), (1, 400), (4, 400)]
    assert all(0 < cost.best_seconds <= cost.seconds for cost in costs)
    assert len(ticks) == 8
    assert read_bandwidth(num_bytes=1 << 16, repeats=1) > 0


@pytest.mark.parametrize(("widths", "contexts"), [([0], [4]), ([1], [0]), ([8], [510])])
def test_passes_that_cannot_be_run_are_refused(widths: list[int], contexts: list[int]) -> None:
    with pytest.raises(InvalidRequestError, match="widths are"):
        measure_passes(decoder(), widths, contexts)
