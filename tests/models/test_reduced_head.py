"""A head of some tokens only: their logits are those of the whole head, all others are -inf."""

import numpy as np
import pytest
import torch

from outrider.errors import InvalidRequestError
from outrider.models.decoder import Decoder
from outrider.models.linear import can_pack
from outrider.models.loading.quantising import decoder_logits
from outrider.models.native.build import VARIANTS
from outrider.models.quantise import QuantisedSource
from outrider.models.toy import random_source, toy_config

VOCAB = 300
IDS = [7, 299, 0, 31, 32, 33, 64, 150, 151, 8, 200]  # in no order, beside and across the borders of panels
TOKENS = np.random.default_rng(0).integers(0, VOCAB, 40).tolist()


def pair(kernels, dtype=torch.float32, *, bits=None, tied_head=True, **more):
    """[40, V] logits of a whole and of a reduced head, and both decoders."""
    config = toy_config(family="qwen2", hidden=96, heads=3, kv_heads=1, vocab_size=VOCAB, tied_head=tied_head)
    source = random_source(config, 1)
    source = source if bits is None else QuantisedSource(source, bits)
    whole = Decoder(config, source, dtype=dtype, kernels=kernels, **more)
    reduced = Decoder(config, source, dtype=dtype, kernels=kernels, head_ids=IDS, **more)
    return decoder_logits(whole, [TOKENS])[0], decoder_logits(reduced, [TOKENS])[0], whole, reduced


def check(expected, logits, whole, reduced):
    assert logits.shape == expected.shape
    assert logits.dtype == torch.float32
    assert torch.equal(logits[:, IDS], expected[:, IDS])
    others = [token for token in range(VOCAB) if token not in IDS]
    assert (logits[:, others] == float("-inf")).all()
    assert reduced.vocab_size == VOCAB
    assert reduced.weight_bytes < whole.weight_bytes


@pytest.mark.parametrize("tied_head", [True, False])
@pytest.mark.parametrize("bits", [None, "int8"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_native_logits_keep_their_bits(native_variant, variant, bits, tied_head):
    native_variant(variant)
    check(*pair("native", torch.bfloat16, bits=bits, tied_head=tied_head))


@pytest.mark.parametrize("tied_head", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernels", ["packed", "dense"])
def test_logits_of_pytorch_s_kernels_keep_their_bits(kernels, dtype, tied_head):
    if kernels == "packed" and not can_pack(dtype):
        pytest.skip(f"{dtype} is not packed here")
    check(*pair(kernels, dtype, tied_head=tied_head, invariant=True))


def test_ids_that_the_model_lacks_are_passed_over_and_some_must_be_left():
    config = toy_config(vocab_size=8)
    decoder = Decoder(config, random_source(config, 1), dtype=torch.float32, kernels="dense", head_ids=[3, 8, 100])
    assert decoder_logits(decoder, [[1, 2]])[0].isfinite().sum(1).tolist() == [1, 1]
    with pytest.raises(InvalidRequestError, match="head_ids names none of the model's 8 tokens; give ids of its"):
        Decoder(config, random_source(config, 1), dtype=torch.float32, kernels="dense", head_ids=[8])
