"""Matrices in the blocks of a GGUF file: multiplied as they are, or as bytes by the matrix unit."""

import dataclasses

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from gguf.quants import Q4_K

from outrider.models.base import ForwardInputs, Segment
from outrider.models.config import Blocks
from outrider.models.decoder import Decoder
from outrider.models.native.build import VARIANTS
from outrider.models.native.library import library
from outrider.models.native.weights import MatrixPacker
from outrider.models.quantise import quantise_rows
from outrider.models.toy import MemorySource, random_source, toy_config

TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K"]
HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}  # where scales lie


@pytest.fixture(params=VARIANTS)
def variant(request, native_variant) -> str:
    native_variant(request.param)
    return request.param


class BlockMemory(MemorySource):
    """Tensors in memory, some of them in blocks; `tensor` gives those dequantised."""

    def __init__(self, tensors: dict[str, torch.Tensor], blocks: dict[str, Blocks]) -> None:
        plain = {name: dequantised(stored) for name, stored in blocks.items()}
        super().__init__(tensors | plain)
        self._blocks = blocks

    def blocks(self, name: str) -> Blocks:
        return self._blocks.get(name, Blocks(0, torch.empty(1, 1, dtype=torch.uint8), 1))  # 0: plain float32


def dequantised(blocks: Blocks) -> torch.Tensor:
    return torch.from_numpy(dequantize(blocks.data.numpy(), GGMLQuantizationType(blocks.kind)))


def random_blocks(kind: str, num_out: int, num_in: int, seed: int, scale: float = 0.01) -> Blocks:
    """Blocks with any integers, also all extreme ones, and scales of about `scale`."""
    number = GGMLQuantizationType[kind]
    per_block, num_bytes = GGML_QUANT_SIZES[number]
    generator = np.random.default_rng(seed)
    data = generator.integers(0, 256, (num_out, num_in // per_block, num_bytes), dtype=np.uint8)
    data[0, 0], data[1 % num_out, 0] = 255, 0
    for at in HALVES[kind]:
        halves = (scale * generator.normal(size=data.shape[:2])).astype(np.float16)
        data[:, :, at : at + 2] = halves[..., None].view(np.uint8)
    return Blocks(int(number), torch.from_numpy(data.reshape(num_out, -1)), num_in)


@pytest.mark.parametrize("kind", TYPES)
def test_a_packed_matrix_is_the_dequantised_one_number_by_number(variant, kind):
    blocks = random_blocks(kind, 75, 256, 1)
    weights, expected = read_back(blocks), dequantised(blocks)
    if variant != "amx":
        assert torch.allclose(weights, expected, rtol=1e-6, atol=1e-6 * expected.abs().max())
        return
    error = weights - expected
    if kind in ("Q5_0", "Q8_0", "Q6_K"):
        assert (error.abs() <= 0.501 / 127 * expected.abs().amax(1, keepdim=True)).all()
        return
    scales, minima = scales_of(kind, blocks)
    units = torch.maximum(scales.abs().amax(1) * 16 / 255, minima.abs().amax(1) / 60000)[:, None]
    spread = scales.abs().amax(1, keepdim=True) / 255 * 7.5  # of rounding the scale, at the ends of a block
    assert (error.abs() <= 1.01 * units + spread + 1e-3 * minima.abs().amax(1, keepdim=True)).all()
    means = error.unflatten(1, (-1, 32)).mean(-1)
    # the minimum, a half, takes up what is lost
    assert (means.abs() <= 1e-3 * (minima.abs() + 16 * scales.abs())).all()


def scales_of(kind: str, blocks: Blocks) -> tuple[torch.Tensor, torch.Tensor]:
    """[out, blocks of 32] scales and minima of the kinds of four bits."""
    data = blocks.data.numpy().reshape(len(blocks.data), -1, GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1])
    scales, minima = (torch.from_numpy(data[..., at : at + 2].copy().view(np.float16)).float() for at in (0, 2))
    if kind == "Q4_0":
        return scales[..., 0], -8 * scales[..., 0]
    if kind == "Q4_1":
        return scales[..., 0], minima[..., 0]
    fine, low = (
        torch.from_numpy(part.reshape(*data.shape[:2], 8)).float()
        for part in Q4_K.get_scale_min(data[..., 4:16].reshape(-1, 12))
    )
    return (scales * fine).flatten(1), -(minima * low).flatten(1)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("num_in", [512, 32 * 33])
def test_rows_are_rounded_and_nothing_else_is(variant, kind, num_in):
    if num_in % GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0]:
        num_in = 768
    num_rows, num_out = 67, 40
    blocks = random_blocks(kind, num_out, num_in, 2)
    generator = np.random.default_rng(3)
    sizes = torch.from_numpy(generator.normal(size=num_in) * np.exp(generator.normal(size=num_in))).to(torch.bfloat16)
    sizes[:40] = 0  # a whole step and a part of one
    signs = torch.from_numpy(
        generator.choice([-1.0, 1.0], (num_rows, num_in))
    ).float()  # of mean square 1: the norm keeps them
    rows, weights = (sizes.float() * signs).double(), read_back(blocks).double()
    scaled = rows * steps_per_unit(variant, rows)
    ties = ((scaled.abs() % 1 - 0.5).abs() < 1e-3).any(0)  # may be broken otherwise
    sizes[ties], rows[:, ties], scaled[:, ties] = 0, 0, 0
    assert ties.double().mean() < 0.1
    rounded = scaled.round() * torch.where(rows != 0, rows / scaled, 0)
    expected = rounded @ weights.T
    logits = run_head(blocks, sizes.float(), signs)
    assert ((logits - expected).abs() <= 1e-5 * rounded.abs() @ weights.abs().T).all()  # what the sums are sums of
    for width in (1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64):
        assert torch.equal(run_head(blocks, sizes.float(), signs[:width]), logits[:width])


def steps_per_unit(variant: str, rows: torch.Tensor) -> torch.Tensor:
    """[n, in] what numbers are multiplied by before they are rounded to integers."""
    if variant == "amx":  # fixed-point numbers of 16 bits for the row
        return (127 * 256 / rows.abs().amax(-1, keepdim=True)).expand_as(rows)
    largest = rows.unflatten(1, (-1, 32)).abs().amax(-1, keepdim=True)  # bytes with a scale for 32 numbers
    return torch.where(largest > 0, 127 / largest, 0).expand(-1, -1, 32).flatten(1)


def test_no_matrix_is_taken_whose_sums_could_overflow(variant):
    q8_0 = int(GGMLQuantizationType.Q8_0)
    assert library().packed_bytes(q8_0, 32, 1 << 16) > 0
    assert (library().packed_bytes(q8_0, 32, (1 << 16) + 32) > 0) == (variant != "amx")
    largest = torch.full((32, 1 << 16), 127.0)
    blocks = Blocks(q8_0, quantise_rows(largest, "int8"), 1 << 16)
    logits = run_head(blocks, torch.ones(1 << 16), torch.ones(3, 1 << 16))
    assert torch.allclose(logits, torch.full((3, 32), 127.0 * (1 << 16)), rtol=1e-3)


@pytest.mark.parametrize("num_rows", [2, 12, 40])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_is_so_everywhere_and_alone(variant, num_rows, value):
    blocks, signs = random_blocks("Q4_K", 40, 256, 4), torch.ones(num_rows, 256)
    expected = run_head(blocks, torch.ones(256), signs)
    signs[1, 70] = value
    logits = run_head(blocks, torch.ones(256), signs)
    assert logits[1].isnan().all()
    others = torch.arange(num_rows) != 1
    assert torch.equal(logits[others], expected[others])


def read_back(blocks: Blocks) -> torch.Tensor:
    """[out, in] the weights that products see: rows with a single number are rounded by nothing."""
    num_in = blocks.num_in
    size = 2.0 ** round(np.log2(num_in) / 2)
    rows = torch.eye(num_in) * num_in**0.5  # of mean square 1
    return run_head(blocks, torch.full((num_in,), size), rows).T / (size * to_bfloat16(num_in**0.5))


def to_bfloat16(number: float) -> float:
    return float(torch.tensor(number).to(torch.bfloat16))


def run_head(blocks: Blocks, norm: torch.Tensor, stream: torch.Tensor) -> torch.Tensor:
    """[rows, out] products of the normed rows with a head in blocks.

    The places of the largest are asked for too, in a call of their own, and compared.
    """
    (num_rows, num_in), num_out = stream.shape, blocks.data.shape[0]
    config = dataclasses.replace(toy_config(vocab_size=num_out), hidden_size=num_in, tied_head=False)
    head = MatrixPacker(config, BlockMemory({}, {"lm_head.weight": blocks}), library(), stored_blocks=True).head()
    assert head.structure.kind != 0
    assert head.nbytes < num_in * -(-num_out // 32) * 32 * 1.1
    logits, rows = torch.empty(num_rows, num_out), np.arange(num_rows)
    best = np.empty(num_rows, dtype=np.int64)
    workspace = torch.empty(library().head_workspace_bytes(head.structure, num_rows, 2), dtype=torch.uint8)
    pointers = (stream.data_ptr(), rows.ctypes.data, num_rows, 2, workspace.data_ptr())
    library().head(head.structure, norm.data_ptr(), 0.0, *pointers, logits.data_ptr(), None)
    library().head(head.structure, norm.data_ptr(), 0.0, *pointers, None, best.ctypes.data)
    is_finite = logits.isfinite().all(1)
    assert best.tolist() == torch.where(is_finite, logits.argmax(1), -1).tolist()
    return logits


@pytest.mark.parametrize("kind", TYPES)
def test_a_model_in_blocks_gives_the_logits_of_its_dequantised_weights(variant, kind):
    config = toy_config(family="qwen2", hidden=256, heads=4, kv_heads=2, vocab_size=70, context_length=2048)
    plain = random_source(config, 4, scale=0.05)
    names = [name for name in sorted(plain.names()) if name.endswith("weight") and plain.tensor(name).ndim == 2]
    scale = 0.005 if kind in ("Q4_0", "Q4_1", "Q5_0") else 0.0005
    blocks = {name: random_blocks(kind, *plain.tensor(name).shape, seed, scale) for seed, name in enumerate(names)}
    source = BlockMemory({name: plain.tensor(name) for name in plain.names()}, blocks)
    exact = Decoder(config, source, dtype=torch.float32, kernels="dense")
    rounded = Decoder(config, source, dtype=torch.bfloat16, kernels="native", stored_blocks=False)
    stored = Decoder(config, source, dtype=torch.bfloat16, kernels="native")
    assert stored.weight_bytes < rounded.weight_bytes
    tokens = np.random.default_rng(0).integers(0, 70, 100)
    expected = run(exact, tokens, [100])
    logits = run(stored, tokens, [100])
    error, other = ((found - expected).abs().mean() for found in (logits, run(rounded, tokens, [100])))
    assert error <= (5 if variant == "amx" else 3) * other  # what is rounded is weights, or rows
    assert torch.equal(run(stored, tokens, [1, 2, 13, 16, 17, 31, 20]), logits)


def run(decoder: Decoder, tokens: np.ndarray, sizes: list[int]) -> torch.Tensor:
    cache = decoder.make_cache()
    slot, logits, done = cache.acquire(), [], 0
    cache.reserve(slot, len(tokens))
    for size in sizes:
        rows = np.arange(size)
        inputs = ForwardInputs(tokens[done : done + size], done + rows, [Segment(slot, 0, size, done)], rows)
        logits.append(decoder.forward(inputs, cache).logits)
        done += size
    return torch.cat(logits)
