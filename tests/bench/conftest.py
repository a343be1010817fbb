"""One tiny model in memory for all tests of the benchmark; one thread, as its passes are far too small to share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from outrider.models.loading import GenerationDefaults, LoadedModel
from outrider.models.toy import random_decoder, toy_config
from toy_text import make_tokenizer


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def loaded() -> LoadedModel:
    """A random model of 64 tokens and a context of 128."""
    numbers = {"vocab_size": 64, "context_length": 128, "hidden": 16, "heads": 2}
    target = random_decoder(3, **numbers)
    return LoadedModel("toy", Path("toy"), target, make_tokenizer(64), toy_config(**numbers), GenerationDefaults(), 0)
