"""Packed products against dense ones."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from outrider.models import linear
from outrider.models.linear import (
    DenseLinear,
    PackedLayout,
    PackedLinear,
    can_pack,
    default_dtype,
    invariant_layout,
    keeps_bits,
)

DTYPES = [torch.float32, torch.bfloat16]


def needs_packing(dtype: torch.dtype) -> None:
    if not can_pack(dtype):
        pytest.skip(f"this build or CPU has no packed {dtype} products")


def matrices(dtype: torch.dtype, num_out: int, num_in: int, num_rows: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(num_out + num_in)
    shapes = ((num_out, num_in), (num_out,), (num_rows, num_in))
    return tuple(torch.randn(shape, generator=generator).mul_(0.2).to(dtype) for shape in shapes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 2, 7, 32, 33, 100])
@pytest.mark.parametrize("row_group", [None, 32])
def test_packed_products_are_dense_products(dtype, num_rows, row_group):
    needs_packing(dtype)
    weight, bias, rows = matrices(dtype, 96, 64, num_rows)
    exact = F.linear(rows.double(), weight.double(), bias.double())
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.03, "atol": 0.02}
    layout = PackedLayout(row_group=row_group)
    for product in (DenseLinear(weight, bias, row_group), PackedLinear(weight, bias, layout)):
        torch.testing.assert_close(product(rows).double(), exact, **tolerance)
        assert product(rows).dtype == dtype
        assert product.nbytes == weight.nbytes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_out", "num_in"), [(96, 64), (960, 576), (576, 1536), (100, 40), (512, 8960)])
def test_grouped_products_keep_a_rows_bits(dtype, num_out, num_in):
    needs_packing(dtype)
    weight, *_ = matrices(dtype, num_out, num_in, 1)
    assert keeps_bits(PackedLinear(weight, layout=invariant_layout(weight)), num_in, dtype)


@pytest.mark.parametrize(("limit", "largest"), [(1000, 256), (200, 128), (64, 64), (40, linear.ROW_GROUP)])
def test_a_trial_finds_the_largest_group_that_keeps_bits(monkeypatch, limit, largest):
    needs_packing(torch.float32)
    multiply = PackedLinear._multiply
    monkeypatch.setattr(PackedLinear, "_multiply", lambda self, rows: multiply(self, rows) * (1 + (len(rows) > limit)))
    weight, *_ = matrices(torch.float32, 96, 64, 1)
    assert invariant_layout(weight).row_group == largest


def test_the_trial_notices_products_that_change_with_the_width():
    class Changing(DenseLinear):
        def __call__(self, rows: torch.Tensor) -> torch.Tensor:
            return super().__call__(rows) * (1 + rows.shape[0] * 1e-6)

    weight, *_ = matrices(torch.float32, 96, 64, 1)
    assert not keeps_bits(Changing(weight), 64, torch.float32)


def test_the_plain_path_stands_in_where_the_operators_are_missing(monkeypatch):
    class Missing:
        def __getattr__(self, name: str) -> None:
            raise AttributeError(name)

    can_pack.cache_clear()
    monkeypatch.setattr(linear, "_mkldnn", Missing)
    assert not can_pack(torch.bfloat16)
    monkeypatch.setattr(linear, "library", lambda: None)
    assert default_dtype("cpu") == torch.float32
    can_pack.cache_clear()
    weight, bias, rows = matrices(torch.float32, 8, 4, 3)
    assert torch.equal(DenseLinear(weight, bias)(rows), F.linear(rows, weight, bias))


@pytest.mark.parametrize(("native", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_default_dtype_of_a_gpu_is_bfloat16_unless_it_would_be_emulated(monkeypatch, native, dtype):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or native)
    assert default_dtype("cuda") == dtype
