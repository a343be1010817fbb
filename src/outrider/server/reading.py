"""From the fields of a request to what the engine takes.

This module knows the model's tokenizer and settings; it knows neither HTTP nor the engine's thread. Invariant: every
field that was given has its effect on the submission, or the request is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from outrider.core.coins import fresh_seed
from outrider.core.params import Draw, Rule, SamplingParams, Speculation
from outrider.engine.generate import encode_prediction
from outrider.errors import InvalidRequestError
from outrider.models.tokenizer import Tokenizer
from outrider.server.fields import ChatRequest, CompletionRequest, SpeculationFields
from outrider.server.keys import Caller
from outrider.server.settings import Settings

__all__ = ["Asked", "Reader", "scope_of"]

_SAME_NAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "n",
)
_COMPLETION_TOKENS = 16  # what OpenAI's interface says for completions where nothing is said


@dataclass(frozen=True, slots=True)
class Asked:
    """What the engine is to do for one HTTP request.

    Attributes:
        prompts: token ids of each prompt.
        params: how tokens are drawn, the seed among it.
        speculation: how drafts are made and judged.
        prediction: the expected output as tokens.
        priority: requests with a higher one go first.
        deadline_seconds: how long it may take; None for no limit of its own.
        statistics, provenance: what the answer tells of speculation.
    """

    prompts: Sequence[Sequence[int]]
    params: SamplingParams
    speculation: Speculation
    prediction: Sequence[int] | None
    priority: int
    deadline_seconds: float | None
    statistics: bool
    provenance: bool

    @property
    def num_choices(self) -> int:
        """Texts of the answer."""
        return len(self.prompts) * self.params.n


class Reader:
    """Reads requests for one model.

    Args:
        tokenizer: the model's.
        params: how tokens are drawn where a request does not say.
        settings: limits.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, settings: Settings) -> None:
        self._tokenizer = tokenizer
        self._params = params
        self._settings = settings

    def chat(self, fields: ChatRequest, caller: Caller) -> Asked:
        """A conversation.

        Raises:
            InvalidRequestError: a value does not fit the model or the limits.
        """
        messages = [{"role": _role(message.role), "content": message.text} for message in fields.messages]
        prompt = self._tokenizer.apply_chat(messages)
        limit = fields.max_completion_tokens or fields.max_tokens
        shown = (fields.top_logprobs or 0) if fields.logprobs else None
        return self._asked(fields, caller, [prompt], max_tokens=limit, logprobs=shown)

    def completion(self, fields: CompletionRequest, caller: Caller) -> Asked:
        """Texts to go on from.

        Raises:
            InvalidRequestError: as for `chat`.
        """
        prompts = [
            self._tokenizer.encode(prompt) if isinstance(prompt, str) else prompt for prompt in _split(fields.prompt)
        ]
        limit = fields.max_tokens or _COMPLETION_TOKENS
        return self._asked(fields, caller, prompts, max_tokens=limit, logprobs=fields.logprobs, echo=fields.echo)

    def _asked(
        self, fields: ChatRequest | CompletionRequest, caller: Caller, prompts: Sequence[Sequence[int]], **more: Any
    ) -> Asked:
        count = len(prompts) * fields.n
        if count > self._settings.max_choices:
            raise InvalidRequestError(
                f"n is {fields.n} for {len(prompts)} prompts, which makes {count} texts; "
                f"ask for at most {self._settings.max_choices} at once."
            )
        prediction = None
        if fields.prediction is not None:
            prediction = encode_prediction(self._tokenizer, fields.prediction.text)
        return Asked(
            prompts=prompts,
            params=self._sampling(fields, more.pop("max_tokens"), more),
            speculation=_speculation(fields.speculation, scope_of(caller, fields.cache_salt)),
            prediction=prediction,
            priority=fields.priority,
            deadline_seconds=fields.deadline_seconds,
            statistics=fields.speculation.statistics,
            provenance=fields.speculation.provenance,
        )

    def _sampling(
        self, fields: ChatRequest | CompletionRequest, max_tokens: int | None, more: dict[str, Any]
    ) -> SamplingParams:
        given = {name: getattr(fields, name) for name in _SAME_NAME}
        given |= more | {"max_tokens": self._limit(max_tokens)}
        given["seed"] = fresh_seed() if fields.seed is None else fields.seed
        if fields.stop is not None:
            given["stop"] = [fields.stop] if isinstance(fields.stop, str) else fields.stop
        if fields.logit_bias is not None:
            given["logit_bias"] = {_token_id(token): bias for token, bias in fields.logit_bias.items()}
        return replace(self._params, **{name: value for name, value in given.items() if value is not None})

    def _limit(self, max_tokens: int | None) -> int | None:
        most = self._settings.max_output_tokens
        if most is not None and max_tokens is not None and max_tokens > most:
            raise InvalidRequestError(f"max_tokens is {max_tokens}; this server gives at most {most}.")
        return most if max_tokens is None else max_tokens


def scope_of(caller: Caller, salt: str | None) -> str:
    """Whose shared drafter state a request reads and feeds: requests of the same key and salt share it."""
    return f"{caller.scope}/{salt or ''}"


def _speculation(fields: SpeculationFields, scope: str) -> Speculation:
    names = fields.drafter
    return Speculation(
        rule=Rule(fields.rule),
        drafters=None if names is None else ((names,) if isinstance(names, str) else tuple(names)),
        length=fields.length,
        tree=tuple(fields.tree) if isinstance(fields.tree, list) else fields.tree,  # type: ignore[arg-type]  # checked
        draw=None if fields.draw is None else Draw[fields.draw.upper()],
        off=fields.off,
        scope=scope,
    )


def _split(prompt: Any) -> list[Any]:
    """One or several prompts as a list of prompts."""
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt]
    return list(prompt)


def _role(role: str) -> str:
    """Templates know the older name."""
    return "system" if role == "developer" else role


def _token_id(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise InvalidRequestError(f"logit_bias has the key {text[:40]!a}; give token ids as decimal numbers.")
    return int(text)
