"""The few things that the array standard lacks, the same on NumPy and torch.

Every function takes arrays of either kind and gives arrays of that kind; torch is never imported here, it is only
recognised. This module does not know laws, tokens or trees. Invariant: nothing is changed in place, save arrays made by
the function itself, and a value depends neither on the kind of array nor on what else stands in the call, up to the
rounding of sums.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array

__all__ = [
    "exp_in_place",
    "host_view",
    "like",
    "logical_shift",
    "mix64",
    "mix64_number",
    "namespace",
    "one_hot",
    "replaced_rows",
    "rows_of",
    "segment_argmin",
    "select",
    "signed64",
    "smallest",
    "support",
    "to_device",
    "to_numpy",
    "topk_values",
    "with_values",
]

Array = Any
_NUMPY = array_namespace(np.zeros(0))


def namespace(*arrays: Array) -> Any:
    """The array-standard namespace that the arrays share."""
    if all(type(array) is np.ndarray for array in arrays):  # the look-up would take longer than most of our work
        return _NUMPY
    return array_namespace(*arrays)


def to_numpy(array: Array) -> np.ndarray[Any, Any]:
    """The values as a NumPy array, shared where that is possible."""
    if is_torch_array(array):
        array = array.detach().cpu().numpy()
    return np.asarray(array)


def host_view(array: Array) -> Array:
    """A tensor in main memory as the NumPy array that shares its memory; any other array as it is.

    Note:
        Rows of a vocabulary are short: on a CPU NumPy's single-threaded kernels beat torch's threaded ones there
        (argmax of 151,936 numbers: 9 against 225 microseconds) and their sums do not depend on a thread count.
    """
    if is_torch_array(array) and array.device.type == "cpu":
        return array.detach().numpy()
    return array


def like(values: Array, model: Array) -> Array:
    """The values as an array of the kind and on the device of `model`, shared where that is possible."""
    if type(values) is type(model) is np.ndarray:
        return values
    return to_device(values, namespace(model), device(model))


def to_device(values: Array, xp: Any, where: Any) -> Array:
    """The values as an array of namespace `xp` on device `where`."""
    return xp.asarray(values, device=where)


def rows_of(array: Array, rows: Sequence[int]) -> Array:
    """[len(rows), ...] the named rows, which ascend; the array itself where all are named."""
    if len(rows) == array.shape[0]:
        return array
    return array[like(np.asarray(rows, dtype=np.int64), array)]


def replaced_rows(array: Array, rows: Sequence[int], values: Array) -> Array:
    """The array [k, ...] with new values [len(rows), ...] in the named rows, which ascend."""
    if len(rows) == array.shape[0]:
        return values
    return with_values(array, like(np.asarray(rows, dtype=np.int64), array), values)


def support(law: Array) -> tuple[Array, Array, Array]:
    """Where a law is positive.

    Args:
        law: [k, V] laws.

    Returns:
        rows [m], tokens [m] and probabilities [m], row by row and ascending in each.
    """
    xp = namespace(law)
    flat_law = xp.reshape(law, (-1,))
    (flat,) = xp.nonzero(flat_law > 0)  # [m]
    if law.shape[0] == 1:
        return xp.zeros_like(flat), flat, flat_law[flat]
    rows = flat // law.shape[1]
    return rows, flat - rows * law.shape[1], flat_law[flat]


def select(values: Array, mask: Array) -> Array:
    """[m] the values [n] where the mask [n] is true, in order; faster than indexing by the mask where few are."""
    (places,) = namespace(mask).nonzero(mask)
    return values[places]


def topk_values(row: Array, count: int) -> Array:
    """[min(count, n)] the largest values of a row [n], descending, repeated values as often as they stand there."""
    size = row.shape[0]
    count = min(count, size)
    if count == 1:
        return namespace(row).max(row, axis=0, keepdims=True)
    if is_torch_array(row):
        return row.topk(count).values
    below = -row  # of a row that is mostly one value, as a cut law is, the other end is found in ten times as long
    return -np.sort(np.partition(below, count - 1)[:count] if count < size else below)


def smallest(values: Array, count: int) -> Array:
    """[min(count, m)] numbers of the smallest of the values [m], ascending; equal values by their number."""
    xp = namespace(values)
    if count == 1:
        return xp.reshape(xp.argmin(values), (1,))
    cut = topk_values(-values, count)[-1]
    (near,) = xp.nonzero(-values >= cut)  # at least `count` of them
    order = xp.argsort(values[near], stable=True)
    return near[order[: min(count, values.shape[0])]]


def segment_argmin(values: Array, rows: Array, num_rows: int) -> Array:
    """For each row, the number of its smallest value.

    Args:
        values: [m] numbers.
        rows: [m] ascending row numbers; every row from 0 to `num_rows` - 1 stands there.
        num_rows: how many rows there are.

    Returns:
        [num_rows] places in `values`; the first of equal values.
    """
    xp = namespace(values)
    if num_rows == 1:
        return xp.reshape(xp.argmin(values), (1,))
    where = device(values)
    starts = xp.searchsorted(rows, xp.arange(num_rows, dtype=rows.dtype, device=where))  # [num_rows]
    places = xp.arange(values.shape[0], dtype=rows.dtype, device=where) - starts[rows]
    padded = xp.full((num_rows, int(xp.max(places)) + 1), float("inf"), dtype=values.dtype, device=where)
    padded[rows, places] = values
    return starts + xp.argmin(padded, axis=1)


def exp_in_place(values: Array) -> Array:
    """[...] exponentials in the memory of the values: fresh memory for a row of a vocabulary costs as much as they."""
    if is_torch_array(values):
        return values.exp_()
    return np.exp(values, out=values)


def one_hot(tokens: Array, width: int, dtype: Any) -> Array:
    """[k, width] rows that are 1 at their token [k] and 0 elsewhere; a token outside the row gives a row of zeros."""
    xp = namespace(tokens)
    where = device(tokens)
    (inside,) = xp.nonzero((tokens >= 0) & (tokens < width))
    rows = xp.zeros((tokens.shape[0], width), dtype=dtype, device=where)
    rows[inside, tokens[inside]] = 1.0
    return rows


def with_values(row: Array, ids: Array, values: Array) -> Array:
    """[n, ...] a copy with `values` at the places `ids` [m]; for an id that is repeated the values must be equal."""
    copy = namespace(row).asarray(row, copy=True)
    copy[ids] = values
    return copy


def signed64(number: int) -> int:
    """The signed 64-bit number with the low 64 bits of a whole number."""
    return ((number + 2**63) % 2**64) - 2**63


def logical_shift(bits: Array, count: int) -> Array:
    """[...] int64 shifted right by 1 to 63 places with zeros from the left."""
    if type(bits) is np.ndarray:  # one pass instead of two
        return (bits.view(np.uint64) >> np.uint64(count)).view(np.int64)
    shifted = bits >> count
    shifted &= (1 << (64 - count)) - 1
    return shifted


_FIRST_FACTOR = signed64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = signed64(0x94D049BB133111EB)


def mix64(bits: Array) -> Array:
    """[k] int64 scrambled one to one: each bit of the result depends on every bit given.

    Args:
        bits: [k] int64, not a single number (NumPy would warn that products wrap).

    Note:
        Products wrap modulo 2**64. The values are pinned by tests: a change would change what every seed says.

    Source:
        The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), David Stafford's variant 13.
    """
    bits = bits ^ logical_shift(bits, 30)  # a new array, changed in place from here on
    bits *= _FIRST_FACTOR
    bits ^= logical_shift(bits, 27)
    bits *= _SECOND_FACTOR
    bits ^= logical_shift(bits, 31)
    return bits


_LOW = 2**64 - 1


def mix64_number(bits: int) -> int:
    """One signed 64-bit number scrambled as `mix64` does; a tenth of the time that an array of one takes."""
    bits &= _LOW
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _LOW
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _LOW
    return signed64(bits ^ (bits >> 31))
