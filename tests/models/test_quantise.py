"""Weights cut to a few bits: as near as ggml's own, multiplied as they are, refused where they lose too much."""

import pytest
import torch
from gguf import GGMLQuantizationType, dequantize
from gguf.quants import quantize

from outrider.errors import InvalidRequestError
from outrider.models.decoder import Decoder
from outrider.models.loading.quantising import Quantise, check_quantise, decoder_logits, measure_loss
from outrider.models.native.library import library
from outrider.models.quantise import QuantisedSource, quantise_rows
from outrider.models.toy import MemorySource, random_source, toy_config

TYPES = {"int4": GGMLQuantizationType.Q4_1, "int8": GGMLQuantizationType.Q8_0}
needs_native = pytest.mark.skipif(library() is None, reason="the native library was not built for this machine")


def restored(rows: torch.Tensor, bits: str) -> torch.Tensor:
    return torch.from_numpy(dequantize(quantise_rows(rows, bits).numpy(), TYPES[bits]))


@pytest.mark.parametrize("bits", TYPES)
def test_no_worse_than_ggml_rounds(bits):
    rows = torch.randn(50, 256, generator=torch.Generator().manual_seed(1)) * 0.03
    theirs = torch.from_numpy(dequantize(quantize(rows.numpy(), TYPES[bits]), TYPES[bits]))
    assert quantise_rows(rows, bits).shape == quantize(rows.numpy(), TYPES[bits]).shape
    assert (restored(rows, bits) - rows).square().mean() <= 1.01 * (theirs - rows).square().mean()


@pytest.mark.parametrize("bits", TYPES)
def test_no_number_is_off_by_more_than_half_a_step(bits):
    rows = torch.randn(50, 256, generator=torch.Generator().manual_seed(2))
    blocks = rows.unflatten(1, (-1, 32))
    span = blocks.abs().amax(-1) / 127 if bits == "int8" else (blocks.amax(-1) - blocks.amin(-1)) / 15
    error = (restored(rows, bits) - rows).unflatten(1, (-1, 32)).abs().amax(-1)
    assert (error <= 0.5 * span + 2e-3 * blocks.abs().amax(-1)).all()  # the scales are rounded to half precision


@pytest.mark.parametrize("bits", TYPES)
@pytest.mark.parametrize("value", [0.0, 0.25, -3.0])
def test_blocks_of_one_value_keep_it(bits, value):
    rows = torch.full((3, 64), value)
    assert torch.allclose(restored(rows, bits), rows, rtol=1e-3)


@needs_native
@pytest.mark.parametrize("bits", TYPES)
def test_a_model_of_few_bits_is_that_of_its_dequantised_weights(bits):
    config = toy_config(family="qwen3", hidden=96, heads=3, kv_heads=1, vocab_size=70, tied_head=False)
    source = random_source(config, 4, scale=0.1)
    cut = {name: source.tensor(name) for name in source.names()}
    for name, weight in cut.items():
        if weight.ndim == 2 and "embed" not in name:
            cut[name] = restored(weight, "int8" if name == "lm_head.weight" else bits)
    tokens = torch.randint(0, 70, (40,), generator=torch.Generator().manual_seed(3)).tolist()
    quantised = Decoder(config, QuantisedSource(source, bits), dtype=torch.bfloat16, kernels="native")
    full = Decoder(config, source, dtype=torch.bfloat16, kernels="native")
    assert quantised.weight_bytes < (0.5 if bits == "int4" else 0.7) * full.weight_bytes  # 96 inputs are held as 128
    exact = Decoder(config, MemorySource(cut), dtype=torch.float32, kernels="dense")
    rounded = Decoder(config, MemorySource(cut), dtype=torch.bfloat16, kernels="native")
    expected, found, other = (decoder_logits(decoder, [tokens])[0] for decoder in (exact, quantised, rounded))
    assert (found - expected).abs().mean() <= 3 * (other - expected).abs().mean()


def test_the_loss_is_the_divergence_of_the_laws():
    laws = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]).log()
    others = torch.tensor([[0.25, 0.5, 0.25], [0.1, 0.2, 0.7]]).log()
    loss = measure_loss("int8", [laws[:1], laws[1:]], [others[:1], others[1:]])
    assert loss.kl == pytest.approx(0.25 * torch.tensor(2.0).log().item() / 2)
    assert (loss.agreement, loss.num_positions) == (0.5, 2)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("none", Quantise()), ("auto", Quantise("auto")), ("int4:max_kl=0.2", Quantise("int4", 0.2))],
)
def test_what_may_be_asked_for(text, wanted):
    assert check_quantise(text) == wanted


@pytest.mark.parametrize(
    "text", ["int3", "", "int4:0.1", "int4:max_kl=", "int4:max_kl=0", "int8:max_kl=nan", "int4:=1"]
)
def test_anything_else_is_refused(text):
    with pytest.raises(InvalidRequestError, match=r"quantize is .* use none, auto, int8, int4"):
        check_quantise(text)
