import subprocess
import sys

import pytest

from outrider.core.options import Option, parse_spec, read_options
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.none import NoDrafter
from outrider.drafters.registry import build_drafter, check_drafter, list_drafters, split_drafters
from outrider.errors import InvalidRequestError


def test_drafters_are_built_by_name():
    assert isinstance(build_drafter("none"), NoDrafter)
    assert isinstance(build_drafter("ngram:max=3,min=1"), NgramDrafter)


def test_every_option_is_read_with_its_type():
    """ml-explore/mlx-lm#1297: options that were accepted and never passed on."""
    _, options = check_drafter("draft_model:model=/a/b:c,min_confidence=0.3,chunk=64,cache_tokens=1000")
    assert options == {
        "model": "/a/b:c",
        "min_confidence": 0.3,
        "chunk": 64,
        "cache_tokens": 1000,
        "dtype": "auto",
        "device": "auto",
        "implementation": "auto",
        "quantize": "none",
        "vocabulary": None,
    }
    suffix = build_drafter("suffix:max=9,min=2,shared=50")
    assert (suffix._longest, suffix._shortest, suffix.store._max_tokens) == (9, 2, 50)
    recycling = build_drafter("recycling:ranks=3,entries=7,shared=true")
    assert (recycling.needs.top_k, recycling._max_entries, recycling._is_shared) == (3, 7, True)
    index = build_drafter("ngram:max=3,min=1,earliest=true")._new_index()
    assert (list(index._lengths), index._earliest) == ([3, 2, 1], True)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "ngrams",
            "'ngrams' does not exist; choose one of draft_model, ngram, none, prediction, recycling, suffix.",
        ),
        ("", "'' has no name"),
        ("ngram:maximum=4", "drafter ngram has no option 'maximum'; it has max, min, earliest."),
        ("none:max=4", "drafter none has no option 'max'; it has none."),
        ("ngram:max=four", "max of drafter ngram is 'four'; give a whole number from 1 to 32."),
        ("ngram:max=4.5", "max of drafter ngram is '4.5'"),
        ("ngram:max=99", "max of drafter ngram is '99'"),
        ("ngram:max=", "max of drafter ngram is ''"),
        ("ngram:max", "'max' in 'ngram:max' is no option; write it as option=value."),
        ("ngram:max=3,max=4", "max is given twice"),
        ("ngram:max=2,min=3", "max=2 and min=3"),
        ("ngram:earliest=perhaps", "give true or false"),
        ("suffix:max=65", "max of drafter suffix is '65'; give a whole number from 1 to 64."),
        ("suffix:max=2,min=3", "drafter suffix has max=2 and min=3"),
        ("suffix:shared=-1", "shared of drafter suffix is '-1'"),
        ("prediction:text=x", "drafter prediction has no option 'text'; it has none."),
        ("recycling:ranks=0", "ranks of drafter recycling is '0'; give a whole number from 1 to 32."),
        ("recycling:entries=0", "entries of drafter recycling is '0'"),
        ("recycling:shared=3", "give true or false"),
        ("draft_model", "drafter draft_model needs the option model"),
        ("draft_model:model=", "model of drafter draft_model is ''"),
        ("draft_model:model=x,min_confidence=nan", "min_confidence of drafter draft_model is 'nan'"),
        ("draft_model:model=x,min_confidence=2", "a number from 0 to 1"),
        ("draft_model:model=x", "needs a loaded target"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_sentence(text, sentence):
    with pytest.raises(InvalidRequestError) as caught:
        build_drafter(text)
    assert sentence in str(caught.value)


def test_the_list_says_what_exists():
    entries = list_drafters()
    assert [entry.name for entry in entries] == ["draft_model", "ngram", "none", "prediction", "recycling", "suffix"]
    assert all(entry.help and option.help for entry in entries for option in entry.options)


def test_listing_imports_no_torch():
    code = (
        "import sys; from outrider.drafters.registry import list_drafters, build_drafter; list_drafters(); "
        "build_drafter('ngram'); import outrider.drafters.ensemble; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_bounds_are_named_whichever_side_they_have():
    at_least, at_most = Option("a", int, "", minimum=2), Option("a", float, "", maximum=2.5)
    assert at_least.meaning == "a whole number of at least 2"
    assert at_most.meaning == "a number of at most 2.5"
    for option, text in ((at_least, "1"), (at_most, "3")):
        with pytest.raises(InvalidRequestError, match="a of thing is"):
            read_options("thing", {"a": text}, [option])
    assert parse_spec(" ngram : max = 4 ".replace(" :", ":")) == ("ngram", {"max": "4"})


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("ngram", ("ngram",)),
        ("ngram:max=4+suffix", ("ngram:max=4", "suffix")),
        ("prediction + ngram", ("prediction", "ngram")),
        ("draft_model:model=/models/a+b,dtype=float32+ngram", ("draft_model:model=/models/a+b,dtype=float32", "ngram")),
        ("ngram+typo", ("ngram+typo",)),
    ],
)
def test_drafters_that_work_together_are_joined_by_a_plus(text, parts):
    assert split_drafters(text) == parts
