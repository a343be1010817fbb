"""What `gpu.py` asks of one decoder: passes, bits, texts, speed and synchronisations. No part needs a tokenizer."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from outrider.cache.base import Cache
from outrider.core.coins import Purpose, exponentials, stream_states, uniforms_of
from outrider.core.params import SamplingParams, Speculation
from outrider.drafters.base import Drafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.scripted import ScriptedDrafter, all_right, wrong_half
from outrider.engine.config import EngineConfig
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.models.base import ForwardInputs, ForwardOutputs, Segment, Target
from outrider.models.decoder import Decoder
from outrider.policies.fixed import Fixed

CONTEXT, WIDTHS, WIDEST, STEPS = 256, (1, 2, 4, 8, 16, 32), 32, 5
FIRST = 3  # passes that are not counted: the third of its shape is recorded where passes are
GREEDY, WARM = SamplingParams(), SamplingParams(temperature=0.8)


@dataclass(frozen=True)
class Size:
    """How much is done: requests and tokens of a text run, timed repeats, enumerations of a kind for each rule."""

    texts: int = 8
    tokens: int = 48
    repeats: int = 9
    checks: int = 4


def advance(decoder: Target, cache: Cache, slots: Sequence[int], start: int, width: int, last: bool) -> ForwardOutputs:
    """A pass of `width` rows of each slot behind `start` cached ones; logits of all rows, or of the last ones only."""
    positions = np.tile(np.arange(start, start + width), len(slots))
    tokens = (positions * 7919 + np.repeat(slots, width) * 31 + 11) % decoder.vocab_size
    segments = [Segment(slot, number * width, width, start) for number, slot in enumerate(slots)]
    wanted = np.arange(width - 1, len(positions), width) if last else np.arange(len(positions))
    return decoder.forward(ForwardInputs(tokens, positions, segments, wanted), cache)


def filled(decoder: Target, num_slots: int, context: int) -> tuple[Cache, list[int]]:
    """A cache whose slots hold `context` rows each, with room for 512 more."""
    cache = decoder.make_cache()
    slots = [cache.acquire() for _ in range(num_slots)]
    for slot in slots:
        cache.reserve(slot, context + 512)
        if context:
            advance(decoder, cache, [slot], 0, context, last=True)
    return cache, slots


def passes(decoder: Decoder, bandwidth: float, size: Size) -> dict[str, Any]:
    """Milliseconds of every kind of pass, and the share that reading the weights needs."""
    cache, slots = filled(decoder, 16, CONTEXT)
    fresh = cache.acquire()
    cache.reserve(fresh, 512)
    kinds = {f"{width} rows": (slots[:1], CONTEXT, width, False) for width in WIDTHS}
    kinds |= {"16 requests x 4 rows": (slots, CONTEXT, 4, False), "prompt of 512": ([fresh], 0, 512, True)}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(size.repeats + FIRST):
        for kind, (own, start, width, last) in kinds.items():
            seconds[kind].append(timed(lambda k=(own, start, width, last): advance(decoder, cache, *k)))  # type: ignore[misc]
            for slot in own:
                cache.truncate(slot, start)
    least = decoder.weight_bytes / bandwidth
    medians = {kind: statistics.median(values[FIRST:]) for kind, values in seconds.items()}
    return {
        "ms": {kind: round(1e3 * value, 4) for kind, value in medians.items()},
        "limit_ms": 1e3 * least,
        "of_limit": {kind: round(least / value, 4) for kind, value in medians.items()},
    }


def width_bits(decoder: Decoder) -> dict[str, Any]:
    """For each width, whether the logits of the same 32 rows have the bits of single-row passes."""
    cache, slots = filled(decoder, 16, CONTEXT)

    def logits(own: Sequence[int], width: int, rows: int = WIDEST) -> torch.Tensor:
        places = range(CONTEXT, CONTEXT + rows, width)
        parts = [advance(decoder, cache, own, place, width, last=False).logits for place in places]
        for slot in own:
            cache.truncate(slot, CONTEXT)
        return torch.cat(parts)

    single = logits(slots[:1], 1)
    pairs = {f"{width} rows": (logits(slots[:1], width), single) for width in WIDTHS}
    alone = torch.cat([logits([slot], 4, 4) for slot in slots])
    pairs["16 requests x 4 rows, against 4 rows"] = logits(slots, 4, 4), alone
    return {
        kind: {"equal": torch.equal(*pair), "largest_difference": float((pair[0] - pair[1]).abs().max())}
        for kind, pair in pairs.items()
    }


def prompts(decoder: Decoder, size: Size) -> list[list[int]]:
    """Token ids with runs that come again, so that prompt lookup has something to find."""
    rng = np.random.default_rng(3)
    return [rng.integers(0, decoder.vocab_size, size=16).tolist() * 3 for _ in range(size.texts)]


def generate(
    engine: Engine,
    own: Sequence[Sequence[int]],
    params: SamplingParams,
    known: dict[str, list[int]],
    texts: Sequence[Sequence[int]] | None,
    first: int = 0,
    speculation: Speculation | None = None,
) -> list[Request]:
    """Requests of some prompts, run to their end together; `known` learns what each will say, `first` is a seed."""
    requests = []
    for number, prompt in enumerate(own):
        (request,) = engine.submit(prompt, replace(params, seed=first + number), speculation)
        known[request.request_id] = [*prompt, *(texts[number] if texts else ())]
        requests.append(request)
    while engine.num_unfinished:
        engine.step()
    if any(request.finish_reason != "length" for request in requests):
        raise RuntimeError(
            f"requests ended with {[request.finish_reason for request in requests]}, not at their length"
        )
    return requests


def texts_kept(decoder: Decoder, size: Size, params: SamplingParams) -> dict[str, Any]:
    """How many texts of a batch are the same alone and with two drafters, and by what margin the others differ."""
    own = prompts(decoder, size)
    params = replace(params, max_tokens=size.tokens)
    plain = generate(Engine(decoder), own, params, {}, None)
    texts = [request.output for request in plain]
    known: dict[str, list[int]] = {}
    scripted = ScriptedDrafter(wrong_half(known, decoder.vocab_size, probability=0.3))
    alone = Engine(decoder)
    ways: dict[str, list[Request]] = {
        "alone": [generate(alone, [prompt], params, {}, None, number)[0] for number, prompt in enumerate(own)]
    }
    drafters: list[Drafter] = [scripted, NgramDrafter(4, 1)]
    for drafter in drafters:
        ways[drafter.name] = generate(Engine(decoder, [drafter], Fixed(4)), own, params, known, texts)
    return {way: compared(decoder, own, params, requests, texts) for way, requests in ways.items()}


def compared(
    decoder: Decoder,
    own: Sequence[Sequence[int]],
    params: SamplingParams,
    requests: Sequence[Request],
    texts: Sequence[Sequence[int]],
) -> dict[str, Any]:
    """How many requests gave the texts, by what margin the others differ, and what became of their drafts."""
    return {
        "texts": len(requests),
        "equal": sum(request.output == text for request, text in zip(requests, texts, strict=True)),
        "margins": [
            margin(decoder, prompt, params, request, text)
            for prompt, request, text in zip(own, requests, texts, strict=True)
            if request.output != text
        ],
        "drafted": sum(request.stats.drafted for request in requests),
        "accepted": sum(request.stats.accepted for request in requests),
    }


def margin(
    decoder: Decoder, prompt: Sequence[int], params: SamplingParams, request: Request, text: Sequence[int]
) -> float:
    """How far the plain text's token leads the other one where two texts first differ."""
    place = next(i for i, (mine, other) in enumerate(zip(request.output, text, strict=True)) if mine != other)
    cache, (slot,) = filled(decoder, 1, 0)
    fed = np.asarray([*prompt, *text[:place]], dtype=np.int64)
    inputs = ForwardInputs(fed, np.arange(len(fed)), [Segment(slot, 0, len(fed), 0)], np.asarray([len(fed) - 1]))
    pair = np.asarray([text[place], request.output[place]])
    scores = decoder.forward(inputs, cache).logits[0].cpu().double().numpy()[pair]
    if params.temperature:
        noise = exponentials(uniforms_of(stream_states(request.stream.seed, Purpose.MATCH, len(fed)), pair))
        scores = scores / params.temperature - np.log(noise)
    return float(scores[0] - scores[1])


def speed(decoder: Decoder, size: Size) -> dict[str, Any]:
    """Tokens a second of plain greedy decoding through the engine and in a bare loop; shares outside the passes."""
    (prompt,) = prompts(decoder, replace(size, texts=1))
    params = replace(GREEDY, max_tokens=size.tokens)
    engine, cache = Engine(decoder, config=EngineConfig(prefix_tokens=0)), decoder.make_cache()
    engine_seconds, loop_seconds = [], []
    for _ in range(4):
        engine_seconds.append(timed(lambda: generate(engine, [prompt], params, {}, None)))
        loop_seconds.append(timed(lambda: plain_loop(decoder, cache, prompt, size.tokens)))
    rates = [size.tokens / statistics.median(seconds[1:]) for seconds in (engine_seconds, loop_seconds)]
    kinds = {"greedy": GREEDY, "temperature 0.8": WARM, "temperature 0.8, top-p 0.95": replace(WARM, top_p=0.95)}
    return {
        "engine_tokens_per_second": rates[0],
        "loop_tokens_per_second": rates[1],
        "engine_over_loop": rates[0] / rates[1],
        "outside_the_passes": {
            f"{name}, {length} right drafts a step": outside(decoder, prompt, replace(params, max_tokens=n), length)
            for name, params in kinds.items()
            for length, n in ((0, size.tokens), (7, 2 * size.tokens))
        },
    }


def plain_loop(decoder: Decoder, cache: Cache, prompt: list[int], num_tokens: int) -> list[int]:
    """Greedy decoding with nothing but passes and an argmax."""
    slot = cache.acquire()
    cache.reserve(slot, len(prompt) + num_tokens)
    output: list[int] = []
    fed, start = prompt, 0
    while len(output) < num_tokens:
        segment = Segment(slot, 0, len(fed), start)
        places = np.arange(start, start + len(fed))
        inputs = ForwardInputs(np.asarray(fed, dtype=np.int64), places, [segment], np.asarray([len(fed) - 1]))
        output.append(int(decoder.forward(inputs, cache).logits[0].argmax()))
        start += len(fed)
        fed = output[-1:]
    cache.release(slot)
    return output


def ready(decoder: Decoder, prompt: list[int], params: SamplingParams, length: int) -> tuple[Engine, Request]:
    """An engine whose only request has read its prompt; its drafts are right where the text is known."""
    known: dict[str, list[int]] = {}
    drafters: list[Drafter] = [ScriptedDrafter(all_right(known))] if length else []
    text = generate(Engine(decoder), [prompt], params, {}, None)[0].output if length else []
    engine = Engine(decoder, drafters, Fixed(max(1, length)))
    if decoder.recorded_bytes:
        generate(engine, [prompt], params, known, [text])  # what is recorded here is only played later
    (request,) = engine.submit(prompt, replace(params, seed=0))
    known[request.request_id] = [*prompt, *text]
    engine.step()
    return engine, request


def outside(decoder: Decoder, prompt: list[int], params: SamplingParams, length: int) -> dict[str, float]:
    """Share and milliseconds of a step that are neither drafting nor the target's pass."""
    engine, request = ready(decoder, prompt, params, length)
    stats = request.stats
    engine.step_seconds, passes_before, steps_before = 0.0, stats.verify_seconds + stats.draft_seconds, stats.steps
    while engine.num_unfinished:
        engine.step()
    others = engine.step_seconds - (stats.verify_seconds + stats.draft_seconds - passes_before)
    return {"share": others / engine.step_seconds, "ms": 1e3 * others / (stats.steps - steps_before)}


def synchronisations(decoder: Decoder, size: Size) -> dict[str, Any]:
    """Waits, copies, launches and reads of single numbers: in a bare pass and in a step of the engine."""
    (prompt,) = prompts(decoder, replace(size, texts=1))
    cache, slots = filled(decoder, 1, CONTEXT)
    counts = {"bare pass": profiled(lambda number: advance(decoder, cache, slots, CONTEXT + number, 1, last=True))}
    for name, params in {"greedy": GREEDY, "temperature 0.8": WARM}.items():
        for length in (0, 4):
            engine, _ = ready(decoder, prompt, replace(params, max_tokens=8 * (STEPS + FIRST + 1)), length)
            counts[f"step, {name}, {length} drafts"] = profiled(lambda _, engine=engine: engine.step())  # type: ignore[misc]
    return counts


def profiled(action: Callable[[int], object]) -> dict[str, float]:
    """Events per call that make the host wait or hand work to the device, by name."""
    for number in range(FIRST):
        action(number)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        for number in range(STEPS):
            action(FIRST + number)
    return {
        event.key: event.count / STEPS
        for event in profile.key_averages()
        if any(
            part in event.key for part in ("Synchronize", "emcpy", "LaunchKernel", "_local_scalar_dense", "aten::copy_")
        )
    }


def timed(action: Callable[[], object]) -> float:
    """Seconds of a call."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started
