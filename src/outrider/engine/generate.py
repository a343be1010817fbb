"""The offline front door: names and texts in, texts out.

Three layers of generators: `Engine.step` gives tokens, `Engine.stream` gives text as it becomes final, `generate`
gives whole texts. This module knows models by name and prompts as text; it decides nothing about drafting.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.core.params import SamplingParams, Speculation
from outrider.core.types import FinishReason, Provenance, TokenLogprobs
from outrider.drafters.registry import build_drafter
from outrider.engine.config import EngineConfig
from outrider.engine.engine import Engine
from outrider.engine.outbox import TextEvent
from outrider.engine.request import Request
from outrider.engine.stats import SpecStats
from outrider.errors import GenerationError
from outrider.models.loading import GenerationDefaults, LoadedModel, load_model
from outrider.models.tokenizer import Tokenizer
from outrider.policies.registry import build_policy

__all__ = ["Generation", "build_engine", "collect", "default_params", "encode_prompt", "generate"]


@dataclass(slots=True)
class Generation:
    """One finished text.

    Attributes:
        text: the text, without stop strings and end-of-text tokens.
        tokens: emitted tokens, a final stop token included.
        provenance: who wrote each of them.
        logprobs: the target's raw log probabilities, where they were asked for.
        finish_reason: "stop" or "length".
        seed: the request's seed; the same one gives the same text again.
        num_prompt: prompt tokens.
        stats: what speculation did.
        first_token_seconds: from the call to the first token.
        decode_seconds: from there to the end.
        num_first: tokens that came with the first one.
    """

    seed: int
    num_prompt: int
    stats: SpecStats
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    provenance: list[Provenance] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    first_token_seconds: float = 0.0
    decode_seconds: float = 0.0
    num_first: int = 0

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
    dtype: str = "auto",
    device: str = "auto",
    config: EngineConfig | None = None,
    progress: bool = True,
) -> Engine:
    """Load a model and make an engine around it.

    Args:
        model: `smollm2`, a model folder, a `.gguf` file, a hub name, or a loaded model.
        drafters: such as `ngram:max=4` or `draft_model:model=NAME`; empty for plain decoding.
        policy: such as `heuristic` or `fixed:length=6`.
        dtype: type of the weights in memory.
        device: where to run.
        config: limits of the engine.
        progress: show downloads on standard error.

    Raises:
        ModelError: the model cannot be used.
        InvalidRequestError: an unknown drafter, policy or option.
    """
    loaded = (
        model if isinstance(model, LoadedModel) else load_model(model, dtype=dtype, device=device, progress=progress)
    )
    return Engine(
        loaded.target,
        [build_drafter(text, loaded) for text in drafters],
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
    if defaults.do_sample is False or (defaults.do_sample is None and defaults.temperature is None):
        return SamplingParams(**values)
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    suggested = {name: getattr(defaults, name) for name in names if getattr(defaults, name) is not None}
    return SamplingParams(**({"temperature": 1.0} | suggested | values))


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


def collect(
    engine: Engine, requests: Sequence[Request], on_event: Callable[[TextEvent], None] | None = None
) -> list[Generation]:
    """Run requests to their end.

    Args:
        engine: the engine they were submitted to.
        requests: what `Engine.submit` gave.
        on_event: told of every event as it comes.

    Raises:
        GenerationError: a request failed on the way.
    """
    started = time.perf_counter()
    results = {r.request_id: Generation(seed=r.seed, num_prompt=r.num_prompt, stats=r.stats) for r in requests}
    for event in engine.stream(requests):
        if event.event.error is not None:
            raise GenerationError(event.event.error)
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
        result.finish_reason = event.event.finish_reason
    return list(results.values())


def generate(
    model: str | LoadedModel | Engine,
    prompts: str | Sequence[str],
    *,
    drafters: Sequence[str] = ("ngram",),
    policy: str = "heuristic",
    speculation: Speculation | None = None,
    raw: bool = False,
    params: SamplingParams | None = None,
) -> list[Generation]:
    """Texts for prompts, in order; with `n` above 1, that many for each.

    Args:
        model: a name, a loaded model or an engine (which brings its own drafters and policy).
        prompts: one or several user messages, or raw texts.
        drafters: such as `ngram:max=4`.
        policy: such as `heuristic`.
        speculation: how the requests may be speculated on.
        raw: leave the chat template out.
        params: how tokens are drawn; None takes the model's own suggestion.

    Raises:
        OutriderError: the model, the request or the run failed.
    """
    engine = model if isinstance(model, Engine) else build_engine(model, drafters=drafters, policy=policy)
    if engine.tokenizer is None:
        raise GenerationError("the engine has no tokenizer; submit token ids to it instead of texts.")
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    requests: list[Request] = []
    try:
        for text in texts:
            tokens = encode_prompt(engine.tokenizer, text, raw=raw)
            requests += engine.submit(tokens, params, speculation)
        return collect(engine, requests)
    finally:
        for request in requests:
            engine.abort(request)  # where a later prompt was refused, the earlier ones do not stay behind
