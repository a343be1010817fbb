"""Matrices in the blocks of a GGUF file are multiplied as they are, in every instruction set."""

import dataclasses

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from outrider.models.base import ForwardInputs, Segment
from outrider.models.config import Blocks
from outrider.models.decoder import Decoder
from outrider.models.native.build import VARIANTS
from outrider.models.native.library import library
from outrider.models.native.weights import MatrixPacker
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
    num_out, num_in = 75, 256
    blocks = random_blocks(kind, num_out, num_in, 1)
    config = dataclasses.replace(toy_config(vocab_size=num_out), hidden_size=num_in, tied_head=False)
    packer = MatrixPacker(config, BlockMemory({}, {"lm_head.weight": blocks}), library(), stored_blocks=True)
    head = packer.head()
    assert head.structure.kind != 0
    assert head.nbytes < num_in * 96 * 1.1
    stream = torch.eye(num_in)  # the norm makes 16 of each 1, so a row of the result is 16 times a column
    size = library().head_workspace_bytes(head.structure, num_in)
    logits, workspace = torch.empty(num_in, num_out), torch.empty(size, dtype=torch.uint8)
    ones, rows = torch.ones(num_in), np.arange(num_in)
    pointers = (stream.data_ptr(), rows.ctypes.data, num_in, 2, workspace.data_ptr(), logits.data_ptr())
    library().head(head.structure, ones.data_ptr(), 0.0, *pointers)
    expected = 16 * dequantised(blocks).T
    assert torch.allclose(logits, expected, rtol=1e-6, atol=1e-6 * expected.abs().max())


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
    assert error <= 1.5 * other  # the weights are exact, only the rows are rounded
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
