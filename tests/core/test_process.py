"""The processing chain against a slow reference that sorts, loops and copies."""

import math

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from toy import round_law

from outrider.bench.toys import Toy, draw_tree
from outrider.core.params import Draw, Rule, SamplingParams
from outrider.core.process import History, Processor
from outrider.core.types import Proposal
from outrider.errors import InvalidRequestError
from strategies import logits_rows, sampling_params

VOCAB = 6
ENDS = (5,)


class BorderlineError(Exception):
    """A cut at which rounding decides; not compared."""


def reference_logits(params, row, prompt, output, ends, allowed=None):
    logits = [float(value) for value in row]
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    for token in {*prompt, *output}:
        penalty = params.repetition_penalty
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    for token in set(output):
        logits[token] -= params.presence_penalty + params.frequency_penalty * output.count(token)
    for word in params.bad_words:
        *tail, last = word
        if len(tail) <= len(output) and list(output[len(output) - len(tail) :]) == tail:
            logits[last] = -math.inf
    if len(output) < params.min_tokens:
        for token in {*ends, *params.stop_token_ids}:
            logits[token] = -math.inf
    return [v if allowed is None or allowed[i] else -math.inf for i, v in enumerate(logits)]


def reference_law(params, row, prompt, output, ends, allowed=None):
    """[V] the law, or None where there is none; borderline cuts are not compared."""
    if any(math.isnan(value) or value == math.inf for value in row):
        return None
    logits = reference_logits(params, row, prompt, output, ends, allowed)
    largest = max(logits)
    if largest == -math.inf:
        return None
    if params.is_greedy:
        return [float(token == logits.index(largest)) for token in range(len(logits))]
    weights = [math.exp((value - largest) / params.temperature) for value in logits]
    if params.top_k:
        cut = sorted(weights, reverse=True)[: params.top_k][-1]
        weights = [w if w >= cut else 0.0 for w in weights]
    if params.top_p < 1:
        wanted, mass, cut = params.top_p * math.fsum(weights), 0.0, 0.0
        for weight in sorted(weights, reverse=True):
            mass += weight
            if abs(mass - wanted) < 1e-12:
                raise BorderlineError
            if mass >= wanted:
                cut = weight
                break
        weights = [w if w >= cut else 0.0 for w in weights]
    if any(0 < abs(w - params.min_p) < 1e-12 for w in weights):
        raise BorderlineError
    weights = [w if w >= params.min_p else 0.0 for w in weights]
    mass = math.fsum(weights)
    return [w / mass for w in weights]


def law(params, row, prompt=(), output=(), split=None, ends=ENDS, mask=None):
    """The shipped law with the output split into committed and path tokens."""
    split = len(output) if split is None else split
    processor = Processor(params, len(row), ends)
    history = History(prompt)
    history.extend(output[:split])
    state = processor.start(history, mask)
    for token in output[split:]:
        state = state.child(token)
    return processor.law(row[None, :], [state])[0]


tokens = st.lists(st.integers(0, VOCAB - 1), max_size=6)


@settings(max_examples=500)
@given(data=st.data(), row=logits_rows(VOCAB), prompt=tokens, output=tokens)
def test_law_equals_the_reference(make_each, data, row, prompt, output):
    params = data.draw(sampling_params(VOCAB))
    split = data.draw(st.integers(0, len(output)))
    try:
        expected = reference_law(params, row, prompt, output, ENDS)
    except BorderlineError:
        reject()
    for make in make_each:
        got = np.asarray(law(params, make(row), prompt, output, split))
        if expected is None:
            assert np.isnan(got).all()
        else:
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-15)
            assert (got > 0).tolist() == [p > 0 for p in expected]


@given(data=st.data(), row=logits_rows(VOCAB), output=tokens)
def test_law_does_not_know_what_is_committed(data, row, output):
    """AX-18: sgl-project/sglang PR 33643. A path token counts, bit for bit, as it will when it is committed."""
    params = data.draw(sampling_params(VOCAB))
    laws = [law(params, row, (1,), output, split) for split in range(len(output) + 1)]
    assert all(np.array_equal(laws[0], other, equal_nan=True) for other in laws)


@given(params=sampling_params(VOCAB), rows=st.lists(logits_rows(VOCAB), min_size=1, max_size=4))
def test_a_row_does_not_depend_on_the_others(make_each, params, rows):
    for make in make_each:
        processor = Processor(params, VOCAB, ENDS)
        start = processor.start(History([2, 2]))
        states = [start, start.child(1), start.child(1).child(1), start.child(4)][: len(rows)]
        together = processor.law(make(np.stack(rows)), states)
        for i, state in enumerate(states):
            alone = processor.law(make(np.stack(rows))[i : i + 1], [state])
            assert np.array_equal(np.asarray(together[i]), np.asarray(alone[0]), equal_nan=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("extra", [{}, {"top_p": 0.9}, {"bad_words": [[2]]}, {"logit_bias": {2: -100.0}}])
def test_numbers_that_are_none_give_no_law(make, value, temperature, extra):
    """SD-09: ohdearquant/lattice PR 375. Also where a ban would hide the number."""
    row = np.asarray([0.0, 1.0, value, 0.5])
    got = np.asarray(law(SamplingParams(temperature=temperature, **extra), make(row)[:], ends=()))
    assert np.isnan(got).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_banning_every_token_gives_no_law(make, temperature):
    params = SamplingParams(temperature=temperature, bad_words=[[0], [1], [2]])
    assert np.isnan(np.asarray(law(params, make(np.zeros(3)), ends=()))).all()
    nothing = np.full(3, -np.inf)
    assert np.isnan(np.asarray(law(SamplingParams(temperature=temperature), make(nothing), ends=()))).all()


@pytest.mark.parametrize("temperature", [0.0, 1e-8, 1e-6, 9e-6])
def test_tiny_temperatures_are_greedy_and_ties_go_to_the_lowest_id(make, temperature):
    """SD-10: google-deepmind/gemma#562, ggml-org/ggml#37, Lightning-AI/litgpt#401, OpenNMT/CTranslate2#1511."""
    row = np.asarray([-1e4, 1e4, 3.0, 1e4])
    assert np.asarray(law(SamplingParams(temperature=temperature), make(row))).tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 0.01, 1e4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_temperature_gives_a_finite_law(temperature, dtype):
    row = np.asarray([-1e4, 1e4, 3.0, 9.999e3, -3e38], dtype=dtype)
    got = law(SamplingParams(temperature=temperature), row, ends=())
    assert got.dtype == dtype
    assert np.isfinite(got).all()
    assert got.sum() == pytest.approx(1.0)


def test_ties_at_a_cut_stay_in(make):
    row = np.log(np.asarray([0.1, 0.3, 0.3, 0.2, 0.1]))
    assert np.asarray(law(SamplingParams(temperature=1.0, top_k=1), make(row), ends=())).tolist() == pytest.approx(
        [0, 0.5, 0.5, 0, 0]
    )
    kept = np.asarray(law(SamplingParams(temperature=1.0, top_p=0.85), make(row), ends=())) > 0
    assert kept.tolist() == [True] * 5
    kept = np.asarray(law(SamplingParams(temperature=1.0, top_p=0.7), make(row), ends=())) > 0
    assert kept.tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("shape", ["steep", "zipf", "flat", "steps", "constant"])
@pytest.mark.parametrize(
    "cuts", [{"top_p": 0.95003}, {"top_p": 0.30007}, {"top_k": 700, "top_p": 0.99901}, {"top_k": 40}]
)
def test_cuts_of_a_large_row_equal_those_of_a_full_sort(make, shape, cuts):
    generator, size = np.random.default_rng(3), 20_000
    row = {
        "steep": generator.normal(size=size) * 4,
        "zipf": -np.log(generator.permutation(size) + 1.0),
        "flat": generator.normal(size=size) * 0.01,
        "steps": generator.integers(0, 12, size=size) * 1.0,
        "constant": np.zeros(size),
    }[shape]
    params = SamplingParams(temperature=1.0, **cuts)
    expected = reference_law(params, row, (), (), ())
    np.testing.assert_allclose(np.asarray(law(params, make(row), ends=())), expected, rtol=1e-10)


def test_min_p_comes_after_top_p(make):
    """top-p looks at the mass that top-k left, not at what min-p will leave."""
    row = np.log(np.asarray([0.40, 0.30, 0.12, 0.10, 0.08]))
    params = SamplingParams(temperature=1.0, top_k=4, top_p=0.5, min_p=0.5)
    assert (np.asarray(law(params, make(row), ends=())) > 0).tolist() == [True, True, False, False, False]


class Mask:
    """Allows even tokens first, then odd ones, in turn; None at the third token."""

    def __init__(self, kind, turn=0):
        self.kind, self.turn = kind, turn

    def allowed(self):
        return None if self.turn == 2 else self.kind(np.arange(4) % 2 == self.turn)

    def child(self, token):
        return Mask(self.kind, self.turn + 1)


def test_outside_mask_follows_the_path(make):
    row = make(np.zeros(4))
    params = SamplingParams(temperature=1.0)
    allowed = [np.asarray(law(params, row, (), (0,) * n, 0, (), Mask(make))).tolist() for n in range(3)]
    assert allowed == [[0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5], [0.25] * 4]


@pytest.mark.parametrize("min_tokens", [1, 5, 6, 7, 20])
def test_an_end_is_first_allowed_after_exactly_min_tokens(min_tokens):
    """SD-19: sgl-project/sglang PR 33643. The ban ends inside a path, at the very token."""
    params = SamplingParams(temperature=1.0, min_tokens=min_tokens, stop_token_ids=[4])
    for committed in range(22):
        for ahead in range(7):
            got = law(params, np.zeros(VOCAB), (), (1,) * (committed + ahead), committed)
            assert (got[[4, 5]] > 0).all() == (committed + ahead >= min_tokens)


def test_bad_words_span_committed_and_path_tokens():
    params = SamplingParams(temperature=1.0, bad_words=[[1, 2, 3], [0]])
    assert law(params, np.zeros(4), (), (1, 2), 1, ())[3] == 0
    assert law(params, np.zeros(4), (), (1, 2), 2, ())[3] == 0
    assert law(params, np.zeros(4), (), (1, 2), 0, ())[3] == 0
    assert law(params, np.zeros(4), (), (1, 1), 1, ())[3] > 0
    assert law(params, np.zeros(4), (1, 2), (), 0, ())[3] > 0  # in the prompt it is no output
    assert law(params, np.zeros(4), (1,), (2,), 0, ())[3] > 0


def test_penalties_change_what_is_drawn_next(make):
    """SD-18: vllm-project/vllm#18902. Frequency penalties of -2 and 2 give different laws, prompt tokens left out."""
    seen = []
    for penalty in (-2.0, 0.0, 2.0):
        params = SamplingParams(temperature=1.0, frequency_penalty=penalty)
        seen.append(np.asarray(law(params, make(np.zeros(3)), (0, 0), (1, 1), 1, ())))
    assert seen[0][1] > seen[1][1] > seen[2][1]
    assert seen[2][1] / seen[2][0] == pytest.approx(math.exp(-4))
    assert seen[2][0] == seen[2][2]


def test_no_settings_reach_only_some_rows():
    """SD-07: vllm-project/vllm#42744, PR 42802, PR 38467. Drafted tokens under the cut or banned are never emitted."""
    params = SamplingParams(temperature=1.0, min_p=0.3, logit_bias={1: -100.0})
    target = Toy(4, 4, params)
    for rule in Rule:  # the approximate one too
        for draft in ([1, 1, 1], [0, 1, 2], [3, 3, 1], [2, 0, 3]):
            proposal = Proposal.chain(draft, source="toy")
            for text in round_law(target, lambda coins, p=proposal: p, rule):
                for place, token in enumerate(text):
                    row = target.numpy_law(text[:place])
                    assert row[token] >= 0.3 * row.max()
                    assert token != 1


def test_float32_laws_are_as_exact_as_float32():
    """AX-06: deepseek-ai/DeepSpec#31. The law that was drawn from is the one in the ratio, in the same precision."""
    from outrider.analysis.enumerate import complete, largest_difference, text_law

    target = Toy(1, 4, make=lambda array: np.asarray(array, dtype=np.float32))
    drafter = Toy(2, 4, make=lambda array: np.asarray(array, dtype=np.float32))
    for draw in (Draw.IID, Draw.WITHOUT_REPLACEMENT):
        got = complete(
            round_law(target, lambda c, d=draw: draw_tree(c, drafter, (2,), d), Rule.TOKEN), target.numpy_law, 2
        )
        assert largest_difference(got, text_law(target.numpy_law, 2)) < 1e-6


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"logit_bias": {7: 1.0}}, "logit_bias names token 7"),
        ({"bad_words": [[0, 9]]}, "bad_words names token 9"),
        ({"stop_token_ids": [6]}, "stop_token_ids names token 6"),
    ],
)
def test_ids_beyond_the_vocabulary_are_refused(asked, sentence):
    with pytest.raises(InvalidRequestError, match=sentence):
        Processor(SamplingParams(**asked), 6)
    Processor(SamplingParams(), 6, end_ids=(9,))


def test_stale_states_and_wrong_widths_are_programming_errors():
    processor, history = Processor(SamplingParams(), 3), History([1])
    state = processor.start(history)
    with pytest.raises(ValueError, match="shape"):
        processor.law(np.zeros((1, 4)), [state])
    with pytest.raises(ValueError, match="shape"):
        processor.law(np.zeros((2, 3)), [state])
    history.append(2)
    with pytest.raises(ValueError, match="committed"):
        processor.law(np.zeros((1, 3)), [state])


def test_no_rows_give_no_laws(make):
    assert tuple(Processor(SamplingParams(), 3).law(make(np.zeros((0, 3))), []).shape) == (0, 3)


def test_logits_are_left_as_they_were(make):
    row = np.asarray([0.5, 1.0, -1.0])
    given_row = make(row.copy())
    law(
        SamplingParams(temperature=0.7, bad_words=[[1]], logit_bias={0: 2.0}, top_p=0.9), given_row, (0,), (2,), ends=()
    )
    assert np.asarray(given_row).tolist() == row.tolist()


@given(prompt=tokens, output=st.lists(st.integers(0, 200), max_size=150), path=tokens)
def test_history_counts_tokens(prompt, output, path):
    history = History(prompt)
    history.extend(output)
    ids, counts = history.counts(path)
    expected = {token: [*output, *path].count(token) for token in {*prompt, *output, *path}}
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == expected
    assert len(ids) == len(expected)
    assert dict(zip(*(a.tolist() for a in history.counts(())), strict=True)) == {
        token: output.count(token) for token in {*prompt, *output}
    }
