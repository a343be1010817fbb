"""Fields of the requests: OpenAI's own, those that vLLM made common, and `speculation`.

Types and ranges of single fields are checked here, what needs the model is not. Invariants: null means "not given"; an
unknown field is refused; numbers are finite and of the right kind, never texts or truth values; the first fault of a
list or object is enough, so that a long one which is wrong all over costs no more than to read it.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

__all__ = ["ChatRequest", "CompletionRequest", "Message", "Prediction", "ResetRequest", "SpeculationFields"]


def _whole(text: str) -> str:
    """Refuse halves of surrogate pairs, which JSON can spell and no text can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half of a surrogate pair; send whole characters") from None
    return text


_Word = Annotated[str, AfterValidator(_whole)]
_Text = Annotated[str, Field(max_length=4_000_000), AfterValidator(_whole)]
_Salt = Annotated[str, Field(max_length=256), AfterValidator(_whole)]
_Stop = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_whole)]
_TokenId = Annotated[int, Field(ge=0, lt=2**31)]
_TokenIds = Annotated[list[_TokenId], Field(min_length=1, fail_fast=True)]
_Bias = Annotated[float, Field(ge=-100, le=100)]


def _first_wrong(biases: Any) -> Any:
    """Where a number is wrong, it alone, to be refused."""
    if not isinstance(biases, dict):
        return biases
    for token, bias in biases.items():
        if type(bias) not in (int, float) or not -100 <= bias <= 100:
            return {token: bias}
    return biases


class _Fields(BaseModel):
    """What all bodies and their parts have in common."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, values: Any) -> Any:
        """Null is the same as leaving a field out; of unknown fields the first is kept, to be refused."""
        if not isinstance(values, dict):
            return values
        known = cls.model_fields
        given = {name: value for name, value in values.items() if value is not None}
        unknown = [name for name in given if name not in known][:1]
        return {name: given[name] for name in [*known, *unknown] if name in given}


class SpeculationFields(_Fields):
    """How this request may be speculated on, and what the answer tells about it."""

    off: bool = Field(False, description="Decode plainly.")
    drafter: _Word | Annotated[list[_Word], Field(fail_fast=True)] | None = Field(
        None,
        description="Drafters that may serve the request; left out: all (with another rule than match: the first).",
    )
    length: Annotated[int, Field(ge=1, le=1024)] | None = Field(None, description="Draft tokens a step at most.")
    tree: _Word | Annotated[list[int], Field(min_length=2, max_length=2, fail_fast=True)] | None = Field(
        None, description='Draft trees: "3x16" is width x nodes; left out: chains.'
    )
    rule: Literal["match", "token", "block", "traversal", "typical"] = Field(
        "match", description="How drafts are judged; typical is approximate, and each answer says so."
    )
    draw: Literal["deterministic", "shared_noise", "iid", "without_replacement", "top_plus_sample"] | None = Field(
        None, description="How a draft model draws; left out: as the rule likes best."
    )
    statistics: bool = Field(False, description="Tell what speculation did, with the last part of each choice.")
    provenance: bool = Field(False, description="Tell who wrote each token.")


def _spelled_out(value: Any) -> Any:
    """`"off"` and `false` are short for `{"off": true}`, `true` for `{}`."""
    if value in ("off", False):
        return {"off": True}
    return {} if value is True else value


class StreamOptions(_Fields):
    """What a stream tells beside the text."""

    include_usage: bool = Field(False, description="A last chunk with the usage of the whole request.")
    continuous_usage_stats: bool = Field(False, description="Usage so far in every chunk.")
    include_obfuscation: Literal[False] = Field(False, description="Padding of chunks; not done.")


class ResponseFormat(_Fields):
    """The form of the answer."""

    type: Literal["text"] = Field(description="Only free text.")


class TextPart(_Fields):
    """A part of a message."""

    type: Literal["text"]
    text: _Text


class Message(_Fields):
    """A message of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: _Text | Annotated[list[TextPart], Field(fail_fast=True)]
    name: _Word | None = None

    @property
    def text(self) -> str:
        """Its text, parts joined."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class Prediction(_Fields):
    """The output that the caller expects."""

    type: Literal["content"]
    content: _Text | Annotated[list[TextPart], Field(fail_fast=True)]

    @property
    def text(self) -> str:
        """Its text, parts joined."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class _Request(_Fields):
    """Fields of both kinds of request."""

    model: _Word = Field(description="The server's name for its model.")
    stream: bool = Field(False, description="Send the text as it becomes final, as server-sent events.")
    stream_options: StreamOptions | None = Field(None, description="What a stream tells beside the text.")
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(None, description="Output tokens at most.")
    n: Annotated[int, Field(ge=1, le=1024)] = Field(1, description="Independent texts for each prompt.")
    seed: Annotated[int, Field(ge=-(2**63) + 1, lt=2**63)] | None = Field(
        None, description="Same seed, same text. Left out: drawn, and told in the header X-Outrider-Seed."
    )
    stop: _Stop | Annotated[list[_Stop], Field(max_length=16, fail_fast=True)] | None = Field(
        None, description="Strings that end the text; they are no part of it."
    )
    temperature: Annotated[float, Field(ge=0)] | None = Field(
        None, description="0 takes the most probable token. Left out: as the model suggests."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(None, description="Keep this much probability.")
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = Field(
        None, description="Taken from logits of tokens in the output."
    )
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = Field(
        None, description="The same for each time a token was used."
    )
    logit_bias: Annotated[dict[str, _Bias], BeforeValidator(_first_wrong)] | None = Field(
        None, description="Token id -> number added to its logit."
    )
    response_format: ResponseFormat | None = Field(None, description="Only free text.")
    user: _Word | None = Field(None, description="Accepted; it changes nothing and is not logged.")
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = Field(
        None, description="Keep the k most probable tokens; 0 keeps all."
    )
    min_p: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="Keep tokens with this share of the best one's probability."
    )
    repetition_penalty: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Divides logits of used tokens; 1 is off."
    )
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = Field(
        None, description="No end before this many tokens."
    )
    ignore_eos: bool | None = Field(None, description="Go on past the model's end-of-text tokens.")
    stop_token_ids: Annotated[list[_TokenId], Field(max_length=1024, fail_fast=True)] | None = Field(
        None, description="Tokens that end the text, beside the model's own."
    )
    cache_salt: _Salt | None = Field(
        None,
        description="Requests share cached prompts and what drafters keep only with those of the same key and salt.",
    )
    prediction: Prediction | None = Field(None, description="The output that you expect; it is drafted from.")
    priority: Annotated[int, Field(gt=-(2**31), lt=2**31)] = Field(0, description="Higher ones go first.")
    deadline_seconds: Annotated[float, Field(gt=0)] | None = Field(
        None, description="An answer that is unfinished so long after the request ends with an error."
    )
    speculation: Annotated[SpeculationFields, BeforeValidator(_spelled_out)] = Field(
        default_factory=SpeculationFields,  # type: ignore[arg-type]  # all of its fields have defaults
        description='How to speculate, or "off".',
    )

    @model_validator(mode="after")
    def _check_stream(self) -> "_Request":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is given without stream; set stream to true or leave it out")
        return self


class ChatRequest(_Request):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000, fail_fast=True)] = Field(
        description="The conversation; only text."
    )
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(
        None, description="The newer name of max_tokens."
    )
    logprobs: bool | None = Field(None, description="The model's own log probabilities of the tokens.")
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None, description="So many most probable tokens at each place; needs logprobs."
    )

    @model_validator(mode="after")
    def _check_pairs(self) -> "ChatRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is given without logprobs; set logprobs to true or leave it out")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens differ; give one of them")
        return self


class CompletionRequest(_Request):
    """Body of `/v1/completions`."""

    prompt: (
        _Text
        | Annotated[list[_Text], Field(min_length=1, max_length=1024, fail_fast=True)]
        | Annotated[list[_TokenId], Field(min_length=1, max_length=4_000_000, fail_fast=True)]
        | Annotated[list[_TokenIds], Field(min_length=1, max_length=1024, fail_fast=True)]
    ) = Field(description="One or several texts, or lists of token ids.")
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None, description="The model's own log probabilities, with so many most probable tokens at each place."
    )
    echo: bool = Field(False, description="Begin the text with the prompt.")
    best_of: Annotated[int, Field(ge=1)] | None = Field(None, description="Only the same number as n.")

    @model_validator(mode="after")
    def _check_best_of(self) -> "CompletionRequest":
        if self.best_of is not None and self.best_of != self.n:
            raise ValueError(f"best_of is {self.best_of}, but n is {self.n}; choosing among texts is not supported")
        return self


class ResetRequest(_Fields):
    """Body of `/v1/drafters/reset`."""

    cache_salt: _Salt | None = Field(
        None, description="Forget what was kept for this salt; left out: for requests without one."
    )
