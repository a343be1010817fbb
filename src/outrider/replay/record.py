"""Let a model write texts and keep them as records.

This module runs an engine; it does not know drafters or files of prompts. Invariant: what is recorded is the target's
own text; speculation makes it come faster and changes nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields

from outrider import __version__
from outrider.core.params import SamplingParams
from outrider.core.types import TokenEvent
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.errors import GenerationError, PromptTooLongError
from outrider.replay.records import Source, TextRecord
from outrider.replay.writer import RecordWriter

__all__ = ["Prompt", "record", "source_of"]

_NO_SETTINGS = ("max_tokens", "seed", "logprobs", "n")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as tokens.

    Attributes:
        id: unique in its file.
        task: what kind of text is asked for.
        tokens: token ids.
        prediction: token ids of an expected text; None without one.
    """

    id: str
    task: str
    tokens: Sequence[int]
    prediction: Sequence[int] | None = None


@dataclass(slots=True)
class _Running:
    prompt: Prompt
    request: Request
    top: list[tuple[int, ...]] = field(default_factory=list)


def source_of(model: str, engine: Engine, params: SamplingParams) -> Source:
    """Where the texts of an engine come from.

    Args:
        model: name of the target.
        engine: the engine.
        params: how its texts are sampled.
    """
    default = SamplingParams()
    settings = {
        f.name: getattr(params, f.name)
        for f in fields(params)
        if f.name not in _NO_SETTINGS and getattr(params, f.name) != getattr(default, f.name)
    }
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(engine.end_ids))
    return Source(
        model=model,
        vocab_size=engine.target.vocab_size,
        context_length=engine.target.context_length,
        end_ids=tuple(sorted(ends)),
        tokenizer="" if engine.tokenizer is None else engine.tokenizer.fingerprint,
        sampling=settings,
        outrider=__version__,
    )


def record(
    engine: Engine,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    writer: RecordWriter,
    source: Source,
    *,
    tick: Callable[[], None] = lambda: None,
) -> list[str]:
    """Record the texts of prompts, several at once, as many as the engine runs; each is written when it ends.

    Args:
        engine: the engine; its drafters only make it faster.
        prompts: the prompts; those that the file holds already are passed over.
        params: how the texts are sampled; `logprobs` is the number of runner-ups that are recorded.
        writer: where the records go.
        source: where the texts come from.
        tick: called after each text.

    Returns:
        Ids of prompts that do not fit the context and were left out.

    Raises:
        GenerationError: a request failed.
    """
    running: dict[str, _Running] = {}
    too_long = []
    for prompt in prompts:
        if prompt.id in writer.done:
            tick()
            continue
        try:
            (request,) = engine.submit(prompt.tokens, params)
        except PromptTooLongError:
            too_long.append(prompt.id)
            tick()
            continue
        running[request.request_id] = _Running(prompt, request)
    try:
        for ended in _ended(engine, running):
            writer.append(_text(ended, source))
            tick()
    finally:
        for left in running.values():
            engine.abort(left.request)
    return too_long


def _ended(engine: Engine, running: dict[str, _Running]) -> Iterator[_Running]:
    """The requests, as they end."""
    while running:
        for event in engine.step():
            one = running[event.request_id]
            _check(one, event)
            one.top += [tuple(token for token, _ in entry.top) for entry in event.logprobs]
            if event.finish_reason is not None:
                del running[event.request_id]
                yield one


def _check(one: _Running, event: TokenEvent) -> None:
    if event.error is not None:
        raise GenerationError(f"prompt {one.prompt.id}: {event.error}")


def _text(one: _Running, source: Source) -> TextRecord:
    request, prediction = one.request, one.prompt.prediction
    return TextRecord(
        id=one.prompt.id,
        task=one.prompt.task,
        prompt=tuple(one.prompt.tokens),
        output=tuple(request.output),
        max_tokens=request.max_length - request.num_prompt,
        finish_reason=str(request.finish_reason),
        source=source,
        seed=0 if request.params.is_greedy else request.seed,
        prediction=None if prediction is None else tuple(prediction),
        top=tuple(one.top) if request.params.logprobs else (),
    )
