"""What a request may say: values of the right kind pass, all others are refused by a sentence that names them."""

from typing import Any

import numpy as np
import pytest

from outrider.core.params import Draw, SamplingParams, Speculation
from outrider.engine.config import EngineConfig
from outrider.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"bad_words": [5]}, "bad_words is [5]; give a list of token id lists, none of them empty."),
        ({"bad_words": [[]]}, "bad_words is [[]]"),
        ({"bad_words": ["no"]}, "bad_words is ['no']"),
        ({"bad_words": [{1: 2}]}, "bad_words is [{1: 2}]"),
        ({"bad_words": [b"no"]}, "bad_words is [b'no']"),
        ({"stop_token_ids": np.array(5)}, "stop_token_ids is array(5); give a list of token ids."),
        ({"temperature": np.float32(-1)}, "temperature is -1.0"),
        ({"temperature": np.float32("nan")}, "temperature is nan"),
        ({"temperature": np.bool_(True)}, "temperature is True"),
        ({"temperature": 10**400}, "temperature is 1"),
        ({"top_k": np.float64(3)}, "top_k is 3.0"),
        ({"logit_bias": {1: "x"}}, "logit_bias is {1: 'x'}"),
    ],
)
def test_sampling_that_cannot_be_meant_is_named(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**values)
    assert str(caught.value).startswith(sentence)


def test_numbers_of_numpy_are_numbers() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5), top_k=np.int64(3), min_p=np.float16(0.25), seed=np.uint32(7), max_tokens=np.int8(4)
    )
    assert params == SamplingParams(temperature=0.5, top_k=3, min_p=0.25, seed=7, max_tokens=4)
    assert {type(params.temperature), type(params.top_k), type(params.seed)} == {float, int}
    assert SamplingParams(logit_bias={np.int64(1): np.float32(2)}, bad_words=[[np.int64(1)]]).bad_words
    assert Speculation(length=np.int64(3)).length == 3


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"drafters": "ngram"}, "drafters is 'ngram'; give a list of names, or leave it out."),
        ({"drafters": [5]}, "drafters is [5]"),
        ({"drafters": 5}, "drafters is 5"),
        ({"draw": "iid"}, "draw is 'iid'; choose one of DETERMINISTIC"),
        ({"draw": 2}, "draw is 2"),
        ({"rule": "match"}, "rule is 'match'"),
    ],
)
def test_speculation_that_cannot_be_meant_is_named(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Speculation(**values)
    assert str(caught.value).startswith(sentence)


def test_drafters_may_be_a_list() -> None:
    assert Speculation(drafters=["ngram"], draw=Draw.IID) == Speculation(drafters=("ngram",), draw=Draw.IID)


@pytest.mark.parametrize(
    "values",
    [{"max_running": "4"}, {"max_running": 1.5}, {"max_nodes": None}, {"chunk_tokens": True}, {"max_nodes": 0}],
)
def test_limits_of_an_engine_are_whole_numbers(values: dict[str, Any]) -> None:
    ((name, value),) = values.items()
    with pytest.raises(InvalidRequestError, match=f"^{name} is {value!r}; give a whole number of 1 or more"):
        EngineConfig(**values)
    assert EngineConfig(max_running=np.int64(4), cache_tokens=None).max_running == 4


@pytest.mark.parametrize("tree", ["3x16", "3X16", (3, 16), [3, 16]])
def test_a_tree_is_width_and_nodes(tree):
    assert Speculation(tree=tree).tree == Speculation(tree=tree).shape == (3, 16)


@pytest.mark.parametrize(
    "tree",
    ["", "3", "x", "3x", "3x16x2", "axb", "0x4", "5x4", (0, 4), (2,), (2.0, 4), 7, "-1x4", "ax3x16", "1x" + "9" * 5000],
)
def test_a_tree_that_cannot_be_meant_is_refused(tree):
    with pytest.raises(InvalidRequestError, match="tree is"):
        Speculation(tree=tree)
