"""Text comes out piece by piece, joins to the whole, and is never taken back.

Broken characters and leaked beginnings of stop strings are the usual complaints about blocks of several tokens.
"""

from dataclasses import replace

import numpy as np
import pytest
from engine_helpers import PROMPT, VOCAB, SameText, assert_idle, decoder, engine, finish, plain, table

from outrider.core.params import SamplingParams, Speculation
from outrider.drafters import scripted
from outrider.drafters.scripted import ScriptedDrafter
from outrider.engine.engine import Engine
from outrider.engine.generate import Generation, collect, encode_prompt, generate
from outrider.engine.text import TextAssembler
from outrider.errors import GenerationError, InvalidRequestError, PromptTooLongError, UnsupportedError
from outrider.models.toy import TableTarget
from outrider.policies.fixed import Fixed
from toy_text import EMOJI, make_tokenizer

TOKENIZER = make_tokenizer()
SMILE = TOKENIZER.encode(EMOJI)
SAID = TOKENIZER.encode(f"he said {EMOJI}{EMOJI} café and {EMOJI} at the end.")


def speaker(said: list[int] = SAID) -> TableTarget:
    """A target that says a known text, then its end token: each token follows from the number of tokens before it."""
    length = len(said) + 2

    def logits(last: tuple[int, ...]) -> np.ndarray:
        row = np.zeros(VOCAB, dtype=np.float32)
        place = len(last) - 1
        row[said[place] if place < len(said) else 0] = 50
        return row

    return TableTarget(VOCAB, order=length, logits=logits)


def build(length: int, said: list[int] = SAID) -> Engine:
    drafter = ScriptedDrafter(scripted.all_right(SameText([1, *said, 0])))
    return engine(speaker(said), [drafter], Fixed(length), tokenizer=TOKENIZER, end_ids=[0])


def pieces(running: Engine, params: SamplingParams | None = None) -> tuple[list[str], list[int]]:
    (request,) = running.submit([1], params)
    texts = [event.text for event in running.stream([request])]
    return texts, request.output


@pytest.mark.parametrize("length", [1, 2, 3, 5, 8])
def test_pieces_join_to_the_text_and_no_character_is_broken(length: int) -> None:
    texts, tokens = pieces(build(length))
    assert tokens == [*SAID, 0]
    assert "".join(texts) == TOKENIZER.decode(tokens) == f"he said {EMOJI}{EMOJI} café and {EMOJI} at the end."
    assert not any("\ufffd" in text for text in texts)
    assert len(texts) > 2


def test_a_limit_inside_a_character_leaves_the_decoder_s_own_text() -> None:
    for limit in range(1, len(SAID)):
        texts, tokens = pieces(build(4), SamplingParams(max_tokens=limit))
        assert "".join(texts) == TOKENIZER.decode(tokens)


def test_a_stop_token_inside_a_character_leaves_the_character_out() -> None:
    start = next(place for place in range(len(SAID)) if SAID[place : place + 4] == SMILE)
    said = [*SAID[: start + 2], 0]
    texts, _ = pieces(build(4, said))
    assert "".join(texts) == "he said "


@pytest.mark.parametrize("length", [1, 4, 8])
@pytest.mark.parametrize("stop", ["said", EMOJI, EMOJI + " c", "é a", "the end", " ", "d."])
def test_the_start_of_a_stop_string_is_never_given_out(stop: str, length: int) -> None:
    whole = TOKENIZER.decode(SAID)
    texts, _ = pieces(build(length), SamplingParams(stop=[stop, "never"]))
    assert "".join(texts) == (whole[: whole.index(stop)] if stop in whole else whole)


@pytest.mark.parametrize("stop", [["he saidx"], ["end.\n"], ["said" + EMOJI]])
def test_what_only_looked_like_a_stop_string_is_given_out_in_the_end(stop: list[str]) -> None:
    texts, _ = pieces(build(3), SamplingParams(stop=stop))
    assert "".join(texts) == TOKENIZER.decode(SAID)


def test_random_bytes_join_to_what_the_decoder_makes_of_them() -> None:
    for seed in range(8):
        params = SamplingParams(temperature=1.5, seed=seed, max_tokens=25)
        expected = plain(table(), PROMPT, params)
        drafter = ScriptedDrafter(scripted.all_right(SameText([*PROMPT, *expected])))
        running = engine(table(), [drafter], Fixed(5), tokenizer=TOKENIZER)
        (request,) = running.submit(PROMPT, params)
        assert "".join(event.text for event in running.stream([request])) == TOKENIZER.decode(expected)


def test_several_requests_share_a_stream_and_others_go_on_beside_it() -> None:
    running = build(3)
    (silent,) = running.submit([1])
    requests = [running.submit([1])[0] for _ in range(2)]
    texts = {request.request_id: "" for request in requests}
    for event in running.stream(requests):
        texts[event.request.request_id] += event.text
    finish(running)
    assert set(texts.values()) == {TOKENIZER.decode(SAID)}
    assert silent.output == [*SAID, 0]
    assert_idle(running)


def test_text_of_steps_before_the_stream_is_not_lost() -> None:
    running = build(2)
    (request,) = running.submit([1])
    for _ in range(3):
        running.step()
    assert "".join(event.text for event in running.stream([request])) == TOKENIZER.decode(SAID)


# -- the assembler alone -----------------------------------------------------------------------------------------------


class Letters:
    """One letter a token; `flush` gives what is left open."""

    def __init__(self, rest: str = "") -> None:
        self._rest = rest

    def push(self, ids) -> str:
        return "".join(chr(97 + number) for number in ids)

    def flush(self) -> str:
        return self._rest


def assemble(text: str, stop: list[str], *, watch_from: int = 0) -> tuple[list[str], bool]:
    assembler, taken = TextAssembler(Letters(), stop), []
    for place, letter in enumerate(text):
        stopped = assembler.push(ord(letter) - 97, watch=place >= watch_from)
        taken.append(assembler.take())
        if stopped:
            break
    assembler.finish(stopped=stopped)
    return [*taken, assembler.take()], stopped


def test_text_is_held_back_only_as_long_as_it_may_be_a_stop_string() -> None:
    assert assemble("xaabz", ["aab"]) == (["x", "", "", "", ""], True)
    assert assemble("xaaab", ["aab"]) == (["x", "", "", "a", "", ""], True)
    assert assemble("xaacz", ["aab"]) == (["x", "", "", "aac", "z", ""], False)
    assert assemble("xaa", ["aab"]) == (["x", "", "", "aa"], False)
    assert assemble("abc", []) == (["a", "b", "c", ""], False)


def test_the_earliest_stop_string_wins_and_overlaps_are_found() -> None:
    assert assemble("abcdef", ["def", "bcde"]) == (["a", "", "", "", "", ""], True)
    assert "".join(assemble("abcde", ["cd", "bcd"])[0]) == "".join(assemble("abcde", ["bcd", "cd"])[0]) == "a"
    assert assemble("ababac", ["abac"])[0] == ["", "", "", "ab", "", "", ""]
    assert "".join(assemble("abcabd", ["abd", "x"])[0]) == "abc"


def test_nothing_ends_the_text_before_it_is_watched_for() -> None:
    assert assemble("abab", ["ab"], watch_from=2) == (["a", "b", "", "", ""], True)
    assert assemble("abb", ["ab"], watch_from=1) == (["a", "b", "b", ""], False)


def test_an_assembler_without_a_decoder_has_no_text() -> None:
    assembler = TextAssembler(None, ["a"])
    assert not assembler.push(0)
    assembler.finish()
    assert assembler.take() == ""


def test_an_open_character_is_part_of_a_text_that_ran_out_but_not_of_one_that_stopped() -> None:
    for stopped, expected in ((False, "a?"), (True, "a")):
        assembler = TextAssembler(Letters("?"))
        assembler.push(0)
        assembler.finish(stopped=stopped)
        assert assembler.take() == expected


# -- the front door ----------------------------------------------------------------------------------------------------


def test_generate_gives_whole_texts_in_order() -> None:
    running = build(4)
    params = SamplingParams(n=2)
    results = generate(running, ["a", "a"], raw=True, params=params)
    assert [result.text for result in results] == [TOKENIZER.decode(SAID)] * 4
    assert {result.finish_reason for result in results} == {"stop"}
    for result in results:
        assert result.num_prompt == 1
        assert 0 < result.num_first <= 5
        assert result.first_token_seconds > 0
        assert result.seconds_per_token == result.decode_seconds / (len(result.tokens) - result.num_first)
    assert_idle(running)
    assert Generation(seed=1, num_prompt=1, stats=results[0].stats).seconds_per_token == 0


def test_generate_may_be_told_not_to_speculate_and_events_can_be_watched() -> None:
    running = build(4)
    (plainly,) = generate(running, "a", raw=True, speculation=Speculation(off=True))
    assert plainly.stats.drafted == 0
    seen: list[str] = []
    (result,) = collect(running, running.submit([1]), lambda event: seen.append(event.text))
    assert "".join(seen) == result.text == plainly.text


def test_errors_of_the_front_door_are_sentences() -> None:
    with pytest.raises(UnsupportedError, match="tokenizer"):
        generate(engine(decoder()), "a")
    with pytest.raises(InvalidRequestError, match="has its own"):
        generate(build(2), "a", raw=True, policy="fixed")
    with pytest.raises(InvalidRequestError, match="chat template"):
        encode_prompt(TOKENIZER, "a")
    running = build(2)
    with pytest.raises(GenerationError, match="output token 0") as caught:
        generate(running, "a", raw=True, params=replace(SamplingParams(), bad_words=[[i] for i in range(VOCAB)]))
    assert [(result.text, result.finish_reason) for result in caught.value.results] == [("", "error")]
    assert_idle(running)


def test_a_refused_prompt_leaves_none_of_the_others_behind() -> None:
    running = build(2)
    with pytest.raises(PromptTooLongError):
        generate(running, ["a", "b" * 600], raw=True)
    assert_idle(running)
    assert generate(running, "a", raw=True)[0].text == TOKENIZER.decode(SAID)
