"""Matrix products with weights laid out once, of one kind chosen at loading.

Two kinds: `DenseLinear` is PyTorch's own product; `PackedLinear` holds the weights in oneDNN's blocked layout, which
reads at close to memory speed on CPUs and costs the same for 1 to 16 rows with a matrix unit. This module knows
matrices and rows, not layers. Invariant: with `row_group` set, a row of the result depends on nothing but its own
input row; `keeps_bits` tries whether that holds here.

Note:
    The packed operators are private to PyTorch: `can_pack` tries them once a dtype; the dense kind stands beside.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812  (the usual name)

from outrider.models.native.library import library

__all__ = [
    "MIN_ROWS",
    "ROW_GROUP",
    "DenseLinear",
    "Linear",
    "PackedLayout",
    "PackedLinear",
    "can_pack",
    "default_dtype",
    "invariant_layout",
    "keeps_bits",
]

ROW_GROUP = 32  # products of at most this many rows sum in one order wherever it was tried
MIN_ROWS = 2  # a single row may be multiplied by a vector routine that sums in an order of its own

_GROUP_SIZES = (256, 128, 64)  # larger groups read the weights less often; each must prove itself
# beyond the smallest group only even widths, as passes are padded: no group may be a single row
_TRIAL_WIDTHS = (2, 3, 8, 13, 16, 24, 31, 32, 34, 48, 64, 66, 96, 126, 128, 130, 160, 192)


class Linear(Protocol):
    """A product with a fixed matrix [out, in] and an optional bias."""

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix as stored."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, in] -> [n, out] the product."""


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """How a packed matrix is laid out and multiplied.

    Attributes:
        packed_for: number of rows that the layout is made for; None for the library's choice.
        row_group: most rows that are multiplied at once; None for no limit.
    """

    packed_for: int | None = None
    row_group: int | None = None


class DenseLinear:
    """PyTorch's own product.

    Args:
        weight: [out, in] the matrix.
        bias: [out] or None.
        row_group: most rows that are multiplied at once; None for no limit.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, row_group: int | None = None) -> None:
        self._weight, self._bias, self._row_group = weight, bias, row_group

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix as stored."""
        return self._weight.nbytes

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, in] -> [n, out] the product."""
        return _by_group(self._row_group, lambda part: F.linear(part, self._weight, self._bias), rows)


class PackedLinear:
    """A product with a matrix in oneDNN's blocked layout.

    Args:
        weight: [out, in] the matrix; not kept.
        bias: [out] or None.
        layout: how it is laid out and multiplied.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, layout: "PackedLayout | None" = None
    ) -> None:
        layout = layout or PackedLayout()
        self._packed = _mkldnn()._reorder_linear_weight(weight.contiguous(), layout.packed_for)
        self._bias, self._row_group, self._nbytes = bias, layout.row_group, weight.nbytes
        self._operator = _mkldnn()._linear_pointwise.default

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix as stored."""
        return self._nbytes

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, in] -> [n, out] the product."""
        return _by_group(self._row_group, self._multiply, rows)

    def _multiply(self, rows: torch.Tensor) -> torch.Tensor:
        return self._operator(rows, self._packed, self._bias, "none", [], "")  # type: ignore[no-any-return]  # the operators have no types


def _by_group(size: int | None, product: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    """The product of at most `size` rows at a time."""
    if size is None or rows.shape[0] <= size:
        return product(rows)
    return torch.cat([product(part) for part in rows.split(size)])


def _mkldnn() -> Any:  # the operators have no types
    return torch.ops.mkldnn


@functools.cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this build and CPU multiply packed matrices of this dtype, and give what the dense product gives."""
    if not torch.backends.mkldnn.is_available():
        return False
    weight = torch.linspace(-1, 1, 64 * 32).view(64, 32).to(dtype)
    rows = torch.linspace(-1, 1, 3 * 32).view(3, 32).to(dtype)
    try:
        packed = PackedLinear(weight)(rows)
    except (RuntimeError, AttributeError):  # an operator that is missing or refuses the dtype
        return False
    return bool(torch.allclose(packed.float(), F.linear(rows.float(), weight.float()), rtol=0.02, atol=0.02))


def default_dtype(device: torch.device | str) -> torch.dtype:
    """The fastest dtype on a device that keeps a model's quality.

    bfloat16 on GPUs and CPUs that multiply it natively or have the native layer for AVX-512, which reads half the
    bytes; float32 elsewhere, as emulation is slower and no more exact.
    """
    if torch.device(device).type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float32
    native = library()
    if native is not None and native.variant != "avx2":
        return torch.bfloat16
    bfloat16_instructions = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if bfloat16_instructions and can_pack(torch.bfloat16) else torch.float32


def keeps_bits(linear: Linear, in_features: int, dtype: torch.dtype, largest: int = 2 * ROW_GROUP) -> bool:
    """Whether a row's product has the same bits in every width from `MIN_ROWS` to `largest`, by trial.

    Args:
        linear: the product.
        in_features: numbers of a row.
        dtype: type of the rows.
        largest: rows of the widest product that is tried.
    """
    rows = torch.randn(largest, in_features, generator=torch.Generator().manual_seed(0)).to(dtype)
    whole = linear(rows)
    widths = [width for width in _TRIAL_WIDTHS if width < largest]
    return all(torch.equal(linear(rows[:width]), whole[:width]) for width in widths)


def invariant_layout(weight: torch.Tensor) -> PackedLayout:
    """The layout and the most rows at once that keep a row's bits at every width, by trial.

    Packed for a single row, most matrices sum in one order up to 128 or 256 rows; those with very long rows do not, and
    take the library's choice, which does up to `ROW_GROUP`.

    Args:
        weight: [out, in] a matrix of the shape and dtype that is asked about.
    """
    for packed_for in (1, None):
        linear = PackedLinear(weight, layout=PackedLayout(packed_for))
        for size in _GROUP_SIZES:
            if keeps_bits(linear, weight.shape[1], weight.dtype, size):
                return PackedLayout(packed_for, size)
    return PackedLayout(None, ROW_GROUP)
