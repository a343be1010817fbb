"""The offline front door: names and texts in, texts out.

Three layers of generators: `Engine.step` gives tokens, `Engine.stream` gives text as it becomes final, `generate`
gives whole texts. This module knows models by name and prompts as text; it decides nothing about drafting.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.core.params import Rule, SamplingParams, Speculation
from outrider.core.types import FinishReason, Provenance, TokenLogprobs
from outrider.drafters.registry import build_drafter
from outrider.engine.config import EngineConfig
from outrider.engine.engine import Engine
from outrider.engine.outbox import TextEvent
from outrider.engine.request import Request
from outrider.engine.stats import SpecStats
from outrider.errors import GenerationError, InvalidRequestError, UnsupportedError
from outrider.models.loading import GenerationDefaults, LoadedModel, load_model
from outrider.models.tokenizer import Tokenizer
from outrider.policies.registry import build_policy

__all__ = ["Generation", "build_engine", "collect", "default_params", "encode_prediction", "encode_prompt", "generate"]


@dataclass(slots=True)
class Generation:
    """One finished text.

    Attributes:
        text: the text, without stop strings and end-of-text tokens.
        tokens: emitted tokens, a final stop token included.
        provenance: who wrote each of them.
        logprobs: the target's raw log probabilities, where they were asked for.
        finish_reason: "stop", "length", "abort" or "error".
        error: what went wrong, in one sentence, where it is "error".
        seed: the request's seed; the same one gives the same text again.
        num_prompt: prompt tokens.
        stats: what speculation did.
        rule: how drafts were judged.
        first_token_seconds: from the call to the first token.
        decode_seconds: from there to the end.
        num_first: tokens that came with the first one.
    """

    seed: int
    num_prompt: int
    stats: SpecStats
    rule: Rule = Rule.MATCH
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    provenance: list[Provenance] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: str | None = None
    first_token_seconds: float = 0.0
    decode_seconds: float = 0.0
    num_first: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether the text has the target's own law; False only where an approximate rule was asked for."""
        return self.rule.is_exact

    @property
    def seconds_per_token(self) -> float:
        """Decode time over the tokens that came in it; 0 where all came at once."""
        count = len(self.tokens) - self.num_first
        return self.decode_seconds / count if count else 0.0


def build_engine(
    model: str | LoadedModel = "smollm2",
    *,
    drafters: Sequence[str] = ("ngram",),
    policy: str = "heuristic",
    dtype: str | None = None,
    device: str | None = None,
    implementation: str | None = None,
    quantize: str | None = None,
    config: EngineConfig | None = None,
    progress: bool = True,
) -> Engine:
    """Load a model and make an engine around it.

    Args:
        model: `smollm2`, a model folder, a `.gguf` file, a hub name, or a loaded model.
        drafters: such as `ngram:max=4` or `draft_model:model=NAME`; empty for plain decoding.
        policy: such as `heuristic` or `fixed:length=6`.
        dtype: type of the weights in memory; None for the device's own.
        device: where to run; None for a GPU if there is one.
        implementation: "decoder" for our own decoder, "transformers" for the library's model; None takes our own
            wherever it knows the family.
        quantize: "int4", "int8" or "auto" to cut float weights on a CPU; None leaves them.
        config: limits of the engine.
        progress: show downloads on standard error.

    Raises:
        ModelError: the model cannot be used.
        InvalidRequestError: an unknown drafter, policy or option, or choices of loading for a model that is loaded.
    """
    chosen = {"dtype": dtype, "device": device, "implementation": implementation, "quantize": quantize}
    given: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    if isinstance(model, LoadedModel) and given:
        raise InvalidRequestError(f"{' and '.join(given)} given for {model.name}, which is loaded; leave it out.")
    loaded = model if isinstance(model, LoadedModel) else load_model(model, progress=progress, **given)
    return Engine(
        loaded.target,
        [build_drafter(text, loaded, progress=progress) for text in drafters],
        build_policy(policy),
        tokenizer=loaded.tokenizer,
        end_ids=loaded.defaults.stop_token_ids,
        params=default_params(loaded.defaults),
        config=config,
    )


def default_params(defaults: GenerationDefaults, **given: Any) -> SamplingParams:
    """Sampling as the model's own generation settings suggest, where the caller says nothing.

    Args:
        defaults: the checkpoint's settings.
        given: values of `SamplingParams`; None counts as not given.
    """
    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    is_greedy = defaults.do_sample is False or (defaults.do_sample is None and defaults.temperature is None)
    names = () if is_greedy else ("temperature", "top_k", "top_p", "min_p")
    suggested = {name: getattr(defaults, name) for name in (*names, "repetition_penalty")}
    suggested = {name: value for name, value in suggested.items() if value is not None}
    start = {} if is_greedy else {"temperature": 1.0}
    return SamplingParams(**(start | suggested | values))


def encode_prompt(tokenizer: Tokenizer, prompt: str, *, raw: bool = False, system: str | None = None) -> list[int]:
    """Prompt text as tokens.

    Args:
        tokenizer: the target's tokenizer.
        prompt: a user's message, or with `raw` the very text to go on from.
        raw: leave the chat template out.
        system: a system message before it.

    Raises:
        InvalidRequestError: the model has no chat template.
    """
    if raw:
        return tokenizer.encode(prompt)
    messages = [] if system is None else [{"role": "system", "content": system}]
    return tokenizer.apply_chat([*messages, {"role": "user", "content": prompt}])


def encode_prediction(tokenizer: Tokenizer, text: str) -> list[int]:
    """An expected output as tokens: the bare text, as the target would write it, without a template or a first token.

    Raises:
        InvalidRequestError: it is no text, or empty.
    """
    if not isinstance(text, str):
        raise InvalidRequestError(f"prediction is of the type {type(text).__name__}; give the expected output as text.")
    if not text:
        raise InvalidRequestError("prediction is empty; give the output that you expect, or leave it out.")
    return tokenizer.encode(text, add_special=False)


def collect(
    engine: Engine, requests: Sequence[Request], on_event: Callable[[TextEvent], None] | None = None
) -> list[Generation]:
    """Run requests to their end.

    Args:
        engine: the engine they were submitted to.
        requests: what `Engine.submit` gave.
        on_event: told of every event as it comes.

    Raises:
        GenerationError: a request failed on the way; raised when all have ended, with all results.
    """
    started = time.perf_counter()
    results = {r.request_id: Generation(r.seed, r.num_prompt, r.stats, r.speculation.rule) for r in requests}
    for event in engine.stream(requests):
        if on_event is not None:
            on_event(event)
        result = results[event.request.request_id]
        elapsed = time.perf_counter() - started
        if not result.tokens:
            result.first_token_seconds, result.num_first = elapsed, len(event.event.tokens)
        result.decode_seconds = elapsed - result.first_token_seconds
        result.text += event.text
        result.tokens += event.event.tokens
        result.provenance += event.event.provenance
        result.logprobs += event.event.logprobs
        result.finish_reason, result.error = event.event.finish_reason, event.event.error
    failed = [result.error for result in results.values() if result.error is not None]
    if failed:
        raise GenerationError(failed[0], tuple(results.values()))
    return list(results.values())


def generate(
    model: str | LoadedModel | Engine,
    prompts: str | Sequence[str],
    *,
    drafters: Sequence[str] | None = None,
    policy: str | None = None,
    speculation: Speculation | None = None,
    raw: bool = False,
    params: SamplingParams | None = None,
    prediction: str | None = None,
) -> list[Generation]:
    """Texts for prompts, in order; with `n` above 1, that many for each.

    Args:
        model: a name, a loaded model or an engine (which brings its own drafters and policy).
        prompts: one or several user messages, or raw texts.
        drafters: such as `ngram:max=4`; None for `ngram`, or the engine's own.
        policy: such as `fixed:length=6`; None for `heuristic`, or the engine's own.
        speculation: how the requests may be speculated on.
        raw: leave the chat template out.
        params: how tokens are drawn; None takes the model's own suggestion.
        prediction: the output that you expect, for every prompt; without `drafters` it is followed beside `ngram`.

    Raises:
        OutriderError: the model, the request or the run failed.
    """
    if not isinstance(model, Engine):
        usual = ("ngram",) if prediction is None else ("prediction", "ngram")
        engine = build_engine(model, drafters=drafters or usual, policy=policy or "heuristic")
    elif drafters is not None or policy is not None:
        raise InvalidRequestError("drafters or policy are given with an engine, which has its own; leave them out.")
    else:
        engine = model
    if engine.tokenizer is None:
        raise UnsupportedError("the engine has no tokenizer; submit token ids to it instead of texts.")
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    expected = None if prediction is None else encode_prediction(engine.tokenizer, prediction)
    requests: list[Request] = []
    try:
        for text in texts:
            tokens = encode_prompt(engine.tokenizer, text, raw=raw)
            requests += engine.submit(tokens, params, speculation, prediction=expected)
        return collect(engine, requests)
    finally:
        for request in requests:
            engine.abort(request)  # where a later prompt was refused, the earlier ones do not stay behind
