"""Each helper on NumPy and on torch, against a plain reference."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.arrays import (
    host_view,
    like,
    logical_shift,
    mix64,
    namespace,
    one_hot,
    replaced_rows,
    rows_of,
    segment_argmin,
    select,
    signed64,
    smallest,
    support,
    to_numpy,
    topk_values,
    with_values,
)

KINDS = [np.asarray, torch.as_tensor]
both = pytest.mark.parametrize("kind", KINDS, ids=["numpy", "torch"])
floats = st.lists(st.sampled_from([-3.0, 0.0, 0.5, 0.5, 2.25, 7.0]), min_size=1, max_size=12)


@both
@given(values=floats, count=st.integers(1, 15))
def test_topk_values_are_the_largest(kind, values, count):
    got = topk_values(kind(np.asarray(values)), count)
    assert to_numpy(got).tolist() == sorted(values, reverse=True)[:count]


@both
@given(values=floats, count=st.integers(1, 15))
def test_smallest_are_named_in_order_and_ties_by_number(kind, values, count):
    got = smallest(kind(np.asarray(values)), count)
    assert to_numpy(got).tolist() == np.argsort(values, kind="stable")[:count].tolist()


@both
@given(law=st.lists(st.lists(st.sampled_from([0.0, 0.0, 0.4, 1.0]), min_size=3, max_size=3), min_size=1, max_size=4))
def test_support_is_where_a_law_is_positive(kind, law):
    rows, tokens, probs = (to_numpy(part).tolist() for part in support(kind(np.asarray(law))))
    expected = [(r, t, p) for r, row in enumerate(law) for t, p in enumerate(row) if p > 0]
    assert list(zip(rows, tokens, probs, strict=True)) == expected


@both
@given(groups=st.lists(floats, min_size=1, max_size=4))
def test_segment_argmin_is_the_argmin_of_each_row(kind, groups):
    values = kind(np.asarray([value for group in groups for value in group]))
    rows = kind(np.asarray([row for row, group in enumerate(groups) for _ in group]))
    starts = np.cumsum([0, *map(len, groups[:-1])])
    expected = [int(start + np.argmin(group)) for start, group in zip(starts, groups, strict=True)]
    assert to_numpy(segment_argmin(values, rows, len(groups))).tolist() == expected


@both
def test_one_hot_has_a_row_of_zeros_for_impossible_tokens(kind):
    got = one_hot(kind(np.asarray([2, 0, 3, -1])), 3, namespace(kind(np.zeros(1))).float64)
    assert to_numpy(got).tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0], [0, 0, 0]]


@both
def test_nothing_that_was_given_is_changed(kind):
    array = kind(np.arange(6.0).reshape(3, 2))
    other = with_values(array, like(np.asarray([1]), array), 9.0)
    assert to_numpy(other).tolist() == [[0, 1], [9, 9], [4, 5]]
    assert to_numpy(replaced_rows(array, [0, 2], array[1:] + 10)).tolist() == [[12, 13], [2, 3], [14, 15]]
    bits = kind(np.arange(4))
    mix64(bits)
    logical_shift(bits, 1)
    assert to_numpy(array).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert to_numpy(bits).tolist() == [0, 1, 2, 3]


@both
def test_rows_are_taken_without_a_copy_where_all_are_named(kind):
    array = kind(np.arange(6.0).reshape(3, 2))
    assert rows_of(array, [0, 1, 2]) is array
    assert to_numpy(rows_of(array, [0, 2])).tolist() == [[0, 1], [4, 5]]
    assert replaced_rows(array, [0, 1, 2], array + 1)[0, 0] == 1
    assert to_numpy(select(array[:, 0], array[:, 0] > 1)).tolist() == [2, 4]


def test_host_view_shares_memory():
    tensor = torch.zeros(3)
    host_view(tensor)[1] = 5.0
    assert tensor.tolist() == [0, 5, 0]
    assert isinstance(like(np.zeros(2), tensor), torch.Tensor)
    array = np.zeros(2)
    assert host_view(array) is array


def reference_mix(bits: int) -> int:
    """The finaliser on Python's whole numbers."""
    bits &= 2**64 - 1
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) % 2**64
    return signed64(bits ^ (bits >> 31))


@both
@given(bits=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5))
def test_mixing_is_that_of_splitmix64(kind, bits):
    assert to_numpy(mix64(kind(np.asarray(bits, dtype=np.int64)))).tolist() == [reference_mix(b) for b in bits]


@both
def test_mixing_is_pinned(kind):
    """SplitMix64 from seed 1234567: the published first outputs of its reference implementation."""
    state = np.asarray([signed64(1234567 + n * 0x9E3779B97F4A7C15) for n in (1, 2, 3)], dtype=np.int64)
    got = [number % 2**64 for number in to_numpy(mix64(kind(state))).tolist()]
    assert got == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@both
@given(bits=st.integers(-(2**63), 2**63 - 1), count=st.integers(1, 63))
def test_logical_shift_fills_with_zeros(kind, bits, count):
    got = logical_shift(kind(np.asarray([bits], dtype=np.int64)), count)
    assert int(got[0]) == (bits % 2**64) >> count


def test_core_and_analysis_import_no_torch():
    code = (
        "import sys, outrider.core.verify, outrider.core.process, outrider.core.tree, outrider.analysis.enumerate, "
        "outrider.analysis.theory; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
