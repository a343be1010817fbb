"""What is checked before a request is queued, so that nothing unsupported is found out in the middle of a text.

Invariant: a request that passes can be served to its end by this engine, or fails by name.
"""

import math
from collections.abc import Sequence

from outrider.core.fit import FITTING_DRAWS
from outrider.core.params import Rule, SamplingParams, Speculation, is_whole_number
from outrider.drafters.ensemble import Ensemble
from outrider.errors import InvalidRequestError, PromptTooLongError, UnsupportedError
from outrider.policies.base import Policy, preferred_drafters

__all__ = ["check_order", "check_policy", "check_prediction", "check_prompt", "check_sampling", "check_speculation"]


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
    """Refuse what needs text from an engine that has none, and what is not computed.

    Raises:
        UnsupportedError: stop strings or an echo were asked of an engine without a tokenizer, or an echo together with
            log probabilities, which a prompt has none of: they would take a pass of the head over all of it.
    """
    if params.stop and not has_text:
        raise UnsupportedError(f"stop is {list(params.stop)!r}, but this engine has no tokenizer; use stop_token_ids.")
    if params.echo and not has_text:
        raise UnsupportedError(
            "echo is true, but this engine has no tokenizer; put the prompt before the tokens yourself."
        )
    if params.echo and params.logprobs is not None:
        raise UnsupportedError(
            f"echo is true and logprobs is {params.logprobs}, but log probabilities of prompt tokens are not computed; "
            "leave one of them out."
        )


def check_order(priority: object, deadline_seconds: object) -> None:
    """Refuse an order that means nothing.

    Raises:
        InvalidRequestError: the priority is no whole number, or the deadline no time above 0.
    """
    if not is_whole_number(priority):
        raise InvalidRequestError(f"priority is {priority!r}; give a whole number, the higher the sooner.")
    is_time = isinstance(deadline_seconds, int | float) and not isinstance(deadline_seconds, bool)
    if deadline_seconds is not None and not (is_time and 0 < deadline_seconds < math.inf):  # type: ignore[operator]
        raise InvalidRequestError(f"deadline_seconds is {deadline_seconds!r}; give seconds above 0, or leave it out.")


def check_policy(policy: Policy, drafters: Ensemble) -> None:
    """Refuse a policy that prefers drafters which the engine does not have: it would never draft, and say nothing.

    Raises:
        InvalidRequestError: an unknown drafter.
    """
    unknown = [name for name in preferred_drafters(policy) if name not in drafters.names]
    if unknown:
        has = ", ".join(drafters.names) or "none"
        raise InvalidRequestError(
            f"the policy names drafter {unknown[0]!r}, which is not loaded; this engine has: {has}."
        )


def check_speculation(speculation: Speculation, drafters: Ensemble) -> None:
    """Refuse drafters that the engine does not have, and shapes and draws that do not go together with the rule.

    Raises:
        InvalidRequestError: an unknown drafter.
        UnsupportedError: the rule cannot judge the tree or the draw, or a drafter cannot draw so.
    """
    names = drafters.names if speculation.drafters is None else speculation.drafters
    unknown = [name for name in names if name not in drafters.names]
    if unknown:
        has = ", ".join(drafters.names) or "none"
        raise InvalidRequestError(f"drafter {unknown[0]!r} is not loaded; this engine has: {has}.")
    draw, rule = speculation.draw, speculation.rule
    if rule is Rule.BLOCK and speculation.shape is not None and speculation.shape[0] > 1:
        width, nodes = speculation.shape
        raise UnsupportedError(
            f"tree {width}x{nodes} does not fit rule BLOCK, which judges chains; leave tree out or choose TRAVERSAL."
        )
    if draw is None:
        return
    takers = {f"rule {rule.name}": FITTING_DRAWS[rule]} | {f"drafter {name}": drafters.draws(name) for name in names}
    for taker, fitting in takers.items():
        if draw not in fitting:
            known = ", ".join(sorted(fit.name for fit in fitting))
            raise UnsupportedError(f"draw {draw.name} does not fit {taker}; choose one of {known}.")
