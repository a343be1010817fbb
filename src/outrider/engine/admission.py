"""What is checked before a request is queued, so that nothing unsupported is found out in the middle of a text.

Invariant: a request that passes can be served to its end by this engine, or fails by name.
"""

from collections.abc import Sequence

from outrider.core.params import Draw, Rule, SamplingParams, Speculation, is_whole_number
from outrider.drafters.ensemble import Ensemble
from outrider.errors import InvalidRequestError, PromptTooLongError, UnsupportedError

__all__ = ["check_prediction", "check_prompt", "check_sampling", "check_speculation"]

_FITTING_DRAWS = {
    Rule.MATCH: frozenset(Draw),
    Rule.TOKEN: frozenset({Draw.DETERMINISTIC, Draw.IID, Draw.WITHOUT_REPLACEMENT, Draw.TOP_PLUS_SAMPLE}),
}


def check_prompt(prompt: Sequence[int], vocab_size: int, context_length: int) -> None:
    """Refuse a prompt that the target cannot read.

    Raises:
        InvalidRequestError: it is empty or holds a token id that the target does not know.
        PromptTooLongError: it leaves no room for one output token.
    """
    if not len(prompt):
        raise InvalidRequestError("prompt is empty; give at least one token of text.")
    bad = next((token for token in prompt if not 0 <= token < vocab_size), None)
    if bad is not None:
        raise InvalidRequestError(f"prompt holds token id {bad}; give ids from 0 to {vocab_size - 1}.")
    if len(prompt) >= context_length:
        raise PromptTooLongError(
            f"prompt has {len(prompt)} tokens, but the context of {context_length} must also hold the output; "
            f"shorten it to at most {context_length - 1}."
        )


def check_prediction(prediction: Sequence[int], vocab_size: int, context_length: int, drafters: Ensemble) -> None:
    """Refuse an expected output that nobody can follow.

    Raises:
        InvalidRequestError: it is no list of the target's token ids, or longer than the context.
        UnsupportedError: no drafter of the engine follows one.
    """
    if isinstance(prediction, str | bytes) or not isinstance(prediction, Sequence):
        kind = type(prediction).__name__
        raise InvalidRequestError(f"prediction is of the type {kind}; give the expected output as a list of token ids.")
    bad = next((token for token in prediction if not is_whole_number(token) or not 0 <= token < vocab_size), None)
    if bad is not None:
        raise InvalidRequestError(f"prediction holds {bad!r}; give token ids from 0 to {vocab_size - 1}.")
    if len(prediction) > context_length:
        raise InvalidRequestError(
            f"prediction has {len(prediction)} tokens, but no output can be longer than the context of "
            f"{context_length}; shorten it."
        )
    if not drafters.needs.prediction:
        has = ", ".join(drafters.names) or "none"
        raise UnsupportedError(
            f"a prediction is given, but none of the drafters ({has}) follows one; add the drafter prediction."
        )


def check_sampling(params: SamplingParams, has_text: bool) -> None:
    """Refuse what needs text from an engine that has none.

    Raises:
        UnsupportedError: stop strings were given to an engine without a tokenizer.
    """
    if params.stop and not has_text:
        raise UnsupportedError(f"stop is {list(params.stop)!r}, but this engine has no tokenizer; use stop_token_ids.")


def check_speculation(speculation: Speculation, drafters: Ensemble) -> None:
    """Refuse drafters that the engine does not have, and draws that a rule cannot judge or a drafter cannot make.

    Raises:
        InvalidRequestError: an unknown drafter.
        UnsupportedError: the draw does not fit.
    """
    names = drafters.names if speculation.drafters is None else speculation.drafters
    unknown = [name for name in names if name not in drafters.names]
    if unknown:
        has = ", ".join(drafters.names) or "none"
        raise InvalidRequestError(f"drafter {unknown[0]!r} is not loaded; this engine has: {has}.")
    draw, rule = speculation.draw, speculation.rule
    if draw is None:
        return
    takers = {f"rule {rule.name}": _FITTING_DRAWS[rule]} | {f"drafter {name}": drafters.draws(name) for name in names}
    for taker, fitting in takers.items():
        if draw not in fitting:
            known = ", ".join(sorted(fit.name for fit in fitting))
            raise UnsupportedError(f"draw {draw.name} does not fit {taker}; choose one of {known}.")
