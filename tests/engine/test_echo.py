"""A text that begins with its prompt, as completions with `echo` do."""

from dataclasses import replace

import pytest
from engine_helpers import PROMPT, engine, table

from outrider.core.params import SamplingParams
from outrider.drafters.ngram import NgramDrafter
from outrider.engine.generate import collect
from outrider.errors import UnsupportedError
from outrider.policies.fixed import Fixed
from toy_text import make_tokenizer

TOKENIZER = make_tokenizer()
PARAMS = SamplingParams(temperature=1.0, seed=3, max_tokens=20)


def text(params: SamplingParams) -> tuple[str, list[int]]:
    running = engine(table(5, order=2, vocab_size=27), [NgramDrafter(3, 1)], Fixed(4), tokenizer=TOKENIZER)
    (result,) = collect(running, running.submit(PROMPT, params))
    return result.text, result.tokens


def test_the_prompt_stands_before_the_text_and_nothing_else_changes() -> None:
    bare, tokens = text(PARAMS)
    assert text(replace(PARAMS, echo=True)) == (TOKENIZER.decode(PROMPT) + bare, tokens)


def test_stop_strings_are_not_looked_for_in_the_prompt() -> None:
    bare, _ = text(PARAMS)
    prompt = TOKENIZER.decode(PROMPT)
    stop = [prompt[:2], prompt[-1] + bare[0], bare[5:7]]
    cut, _ = text(replace(PARAMS, stop=stop))
    assert text(replace(PARAMS, stop=stop, echo=True))[0] == prompt + cut


def test_what_an_echo_cannot_have_is_refused_by_name() -> None:
    running = engine(table(5, order=2, vocab_size=27), tokenizer=TOKENIZER)
    with pytest.raises(UnsupportedError, match="log probabilities of prompt tokens"):
        running.submit(PROMPT, replace(PARAMS, echo=True, logprobs=0))
    with pytest.raises(UnsupportedError, match="echo is true, but this engine has no tokenizer"):
        engine(table(5)).submit(PROMPT, replace(PARAMS, echo=True))
    assert running.num_unfinished == 0
