"""Files of the tokens that a draft model may propose: what is chosen, and which files are refused."""

import json
from types import SimpleNamespace

import pytest

from outrider.drafters.registry import build_drafter
from outrider.drafters.vocabulary import choose_tokens, read_vocabulary, write_vocabulary
from outrider.errors import InvalidRequestError
from outrider.models.toy import random_decoder
from toy_text import make_tokenizer

TOKENIZER = make_tokenizer()
SIZE = len(TOKENIZER.tokens)


def ids_of(text):
    return TOKENIZER.encode(text, add_special=False)


def written(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_special_tokens_come_first_then_frequent_ones_then_low_numbers():
    choice = choose_tokens(["bab", "zb"], TOKENIZER, 6)
    (b,), (a,), (z,) = ids_of("b"), ids_of("a"), ids_of("z")
    assert choice.ids[:4] == [0, b, a, z]
    assert choice.ids[4:] == [token for token in range(SIZE) if token not in (0, a, b, z)][:2]
    assert (choice.num_tokens, choice.num_covered) == (5, 5)
    assert choose_tokens(["bab", "zb"], TOKENIZER, 2) == ([0, b], 5, 3)


def test_all_tokens_may_be_chosen_but_no_more_and_special_ones_are_no_vocabulary():
    assert sorted(choose_tokens(["a"], TOKENIZER, SIZE).ids) == list(range(SIZE))
    for size in (SIZE + 1, 1):
        with pytest.raises(InvalidRequestError, match=f"size is {size}, but the vocabulary has {SIZE} tokens, 1 of"):
            choose_tokens(["a"], TOKENIZER, size)
    with pytest.raises(InvalidRequestError, match="the texts hold no tokens; give texts"):
        choose_tokens([""], TOKENIZER, 4)


def test_what_was_written_is_read_and_is_the_same_again(tmp_path):
    ids = choose_tokens(["the end"], TOKENIZER, 12).ids
    for name in ("one", "two"):
        write_vocabulary(tmp_path / name, ids, TOKENIZER)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert read_vocabulary(tmp_path / "one", TOKENIZER) == ids
    assert read_vocabulary(written(tmp_path / "plain", ids), TOKENIZER) == ids
    with pytest.raises(InvalidRequestError, match=r"cannot be written .*; give another --output"):
        write_vocabulary(tmp_path, ids, TOKENIZER)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "holds no tokens"),
        ({}, "holds no tokens"),
        ("3", "holds no tokens"),
        ([1, SIZE], f"names the token {SIZE}, but the target's ids are 0 to {SIZE - 1}"),
        ([-1], "names the token -1"),
        ([1, "2"], "names the token '2'"),
        ([True], "names the token True"),
        ([1.0], "names the token 1.0"),
        ([3, 1, 3], "names the token 3 twice"),
        ({"a": 1, "b": 1}, "names the token 1 twice"),
        ("3\n5\n", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
    ],
)
def test_files_that_name_no_tokens_are_refused(tmp_path, value, reason):
    path = written(tmp_path / "file", value)
    with pytest.raises(InvalidRequestError) as caught:
        read_vocabulary(path, TOKENIZER)
    assert str(caught.value).startswith(f"vocabulary {path} {reason}")


def test_a_file_that_is_none_or_no_text_is_refused(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for path, reason in (
        (tmp_path, "cannot be read"),
        (tmp_path / "none", "cannot be read"),
        (tmp_path / "bytes", "is"),
    ):
        with pytest.raises(InvalidRequestError, match=f"{path.name} {reason} .*; make one with `outrider models voca"):
            read_vocabulary(path, TOKENIZER)


def test_a_file_of_another_vocabulary_is_refused_but_added_tokens_may_be_spelled_otherwise(tmp_path):
    one, two = TOKENIZER.tokens[5:7]
    with pytest.raises(InvalidRequestError, match=f"of another vocabulary than the target's: token 6 is '{one}' there"):
        read_vocabulary(written(tmp_path / "permuted", {one: 6, two: 5}), TOKENIZER)
    assert read_vocabulary(written(tmp_path / "release", {"<end>": 0, one: 5}), TOKENIZER) == [0, 5]


def test_the_option_reaches_the_head_and_is_refused_before_a_model_is_loaded(tmp_path, monkeypatch):
    def load_model(name, *, head_ids, **more):
        assert name == "small"
        return SimpleNamespace(
            name=name, target=random_decoder(1, vocab_size=SIZE, head_ids=head_ids), tokenizer=TOKENIZER
        )

    monkeypatch.setattr("outrider.models.loading.load_model", load_model)
    target = SimpleNamespace(name="big", target=random_decoder(2, vocab_size=SIZE), tokenizer=TOKENIZER)
    path = written(tmp_path / "ids", [4, 9, 2])
    drafter = build_drafter(f"draft_model:model=small,vocabulary={path}", target)
    assert drafter.model.weight_bytes < target.target.weight_bytes
    with pytest.raises(InvalidRequestError, match="vocabulary nowhere cannot be read"):
        build_drafter("draft_model:model=none,vocabulary=nowhere", target)
