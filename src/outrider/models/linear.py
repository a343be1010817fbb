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
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812  (the usual name)

__all__ = [
    "MIN_ROWS",
    "ROW_GROUP",
    "DenseLinear",
    "Linear",
    "PackedLinear",
    "can_pack",
    "default_dtype",
    "keeps_bits",
    "make_linear",
]

ROW_GROUP = 32  # packed bfloat16 products sum in one order for up to this many rows, and in another beyond
MIN_ROWS = 2  # a single row may be multiplied by a vector routine that sums in an order of its own


class Linear(Protocol):
    """A product with a fixed matrix [out, in] and an optional bias."""

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix as stored."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, in] -> [n, out] the product."""

    def silu(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, in] -> [n, out] SiLU of the product."""

    def times(self, rows: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """[n, in], [n, out] -> [n, out] the product times `other`, element by element."""


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

    def silu(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, in] -> [n, out] SiLU of the product."""
        return F.silu(self(rows))

    def times(self, rows: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """[n, in], [n, out] -> [n, out] the product times `other`."""
        return self(rows).mul_(other)


class PackedLinear:
    """A product with a matrix in oneDNN's blocked layout; what follows the product is fused into it.

    Args:
        weight: [out, in] the matrix; not kept.
        bias: [out] or None.
        row_group: most rows that are multiplied at once; None for no limit.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, row_group: int | None = None) -> None:
        self._packed = _mkldnn()._reorder_linear_weight(weight.contiguous())
        self._bias, self._row_group, self._nbytes = bias, row_group, weight.nbytes
        self._unary = _mkldnn()._linear_pointwise.default
        self._binary = _mkldnn()._linear_pointwise.binary

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix as stored."""
        return self._nbytes

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, in] -> [n, out] the product."""
        return self._product(rows, "none")

    def silu(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, in] -> [n, out] SiLU of the product, taken before the product is rounded."""
        return self._product(rows, "swish")

    def times(self, rows: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """[n, in], [n, out] -> [n, out] the product times `other`, taken before the product is rounded."""

        def product(part: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
            return self._binary(part, factor, self._packed, self._bias, "mul")  # type: ignore[no-any-return]

        return _by_group(self._row_group, product, rows, other)

    def _product(self, rows: torch.Tensor, then: str) -> torch.Tensor:
        def product(part: torch.Tensor) -> torch.Tensor:
            return self._unary(part, self._packed, self._bias, then, [], "")  # type: ignore[no-any-return]

        return _by_group(self._row_group, product, rows)


def _by_group(size: int | None, product: Callable[..., torch.Tensor], *arguments: torch.Tensor) -> torch.Tensor:
    """The product of at most `size` rows at a time: one order of summation, and the weights stay in the CPU's cache."""
    if size is None or arguments[0].shape[0] <= size:
        return product(*arguments)
    parts = zip(*(argument.split(size) for argument in arguments), strict=True)
    return torch.cat([product(*part) for part in parts])


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

    bfloat16 on GPUs and on CPUs with bfloat16 instructions; float32 elsewhere.
    """
    if torch.device(device).type != "cpu":
        return torch.bfloat16
    bfloat16_instructions = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if bfloat16_instructions and can_pack(torch.bfloat16) else torch.float32


def make_linear(
    weight: torch.Tensor, bias: torch.Tensor | None = None, *, packed: bool, row_group: int | None = None
) -> Linear:
    """Lay a matrix out for products.

    Args:
        weight: [out, in] the matrix, in the dtype of the products.
        bias: [out] or None.
        packed: whether to pack; see `can_pack`.
        row_group: most rows that are multiplied at once; None for no limit.
    """
    kind = PackedLinear if packed else DenseLinear
    return kind(weight, bias, row_group)


def keeps_bits(linear: Linear, in_features: int, dtype: torch.dtype) -> bool:
    """Whether a row's product has the same bits in every width from `MIN_ROWS` to twice `ROW_GROUP`, by trial."""
    rows = torch.randn(2 * ROW_GROUP, in_features, generator=torch.Generator().manual_seed(0)).to(dtype)
    whole = linear(rows)
    widths = (MIN_ROWS, 3, 5, 8, 13, 16, 24, ROW_GROUP, ROW_GROUP + MIN_ROWS)
    return all(torch.equal(linear(rows[:width]), whole[:width]) for width in widths)
