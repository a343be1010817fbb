"""What a step costs outside the target's passes, and whether the speed-up is what its parts predict.

    python benchmarks/step_cost.py --model smollm2
    python benchmarks/step_cost.py --rows 49152 151936    (the processing chain and the noise alone, without a model)

Three parts, each taking turns within one process: the share of a step that is neither pass (temperature 1, top-p 0.95,
eight rows); plain decoding through the engine against a loop without any speculation code; and the measured speed-up of
a drafter that is right with a given probability against tokens a pass x plain pass / (draft + wide pass).
"""

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from outrider.core.coins import At, BatchCoins, Stream
from outrider.core.params import SamplingParams
from outrider.core.process import History, PathState, Processor
from outrider.drafters.scripted import ScriptedDrafter, all_right, wrong_half
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.models.base import ForwardInputs, Segment
from outrider.models.loading import LoadedModel, load_model
from outrider.policies.fixed import Fixed

PROMPT = "Write a long story about a dog and a cat who travel around the world together."


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", metavar="VOCABULARY", help="time laws and draws of made-up rows")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.rows:
        print(json.dumps([row_cost(size, kind, options.rounds) for size in options.rows for kind in _SHAPES], indent=2))
        return
    loaded = load_model(options.model)
    prompt = loaded.tokenizer.apply_chat([{"role": "user", "content": PROMPT}])
    report = {
        "model": options.model,
        "outside_the_passes": outside_the_passes(loaded, prompt, options.tokens, options.rounds),
        "engine_over_plain_loop": engine_over_plain_loop(loaded, prompt, options.tokens, options.rounds),
        "speedup": [speedup(loaded, prompt, options.tokens, options.rounds, wrong) for wrong in (0.1, 0.3, 0.5)],
    }
    print(json.dumps(report, indent=2))


_SHAPES = {"peaked": 16.0, "broad": 0.0}
"""How far the best of a row's thirty likely tokens stand above its many others."""


def row_cost(vocab_size: int, shape: str, rounds: int) -> dict[str, object]:
    """Microseconds that eight rows of logits take to become laws and then tokens, at several settings."""
    generator = np.random.default_rng(1)
    logits = generator.normal(scale=2.5, size=(8, vocab_size)).astype(np.float32)
    if _SHAPES[shape]:
        for row in logits:
            row[generator.integers(0, vocab_size, size=30)] += np.linspace(_SHAPES[shape], 4, 30, dtype=np.float32)
    settings = {
        "temperature 1, top-p 0.95": SamplingParams(temperature=1.0, top_p=0.95),
        "temperature 1": SamplingParams(temperature=1.0),
        "temperature 0.7, top-k 50, top-p 0.9": SamplingParams(temperature=0.7, top_k=50, top_p=0.9),
        "greedy": SamplingParams(),
    }
    coins = BatchCoins([Stream(5, 0)])
    report: dict[str, object] = {"vocabulary": vocab_size, "shape": shape}
    for name, params in settings.items():
        processor = Processor(params, vocab_size)
        state = processor.start(History([1, 2, 3]))
        laws: list[np.ndarray] = []
        law_seconds, draw_seconds = [], []
        for _ in range(rounds + 1):
            laws.clear()
            law_seconds.append(timed(functools.partial(make_laws, processor, state, logits, laws)))
            draw_seconds.append(timed(functools.partial(draw_tokens, coins, laws)))
        parts = {"laws": statistics.median(law_seconds[1:]), "draws": statistics.median(draw_seconds[1:])}
        report[name] = {part: round(1e6 * seconds) for part, seconds in parts.items()}
    return report


def make_laws(processor: Processor, state: PathState, logits: np.ndarray, laws: list[np.ndarray]) -> None:
    """Append the law of each row."""
    laws.extend(processor.law(row[None, :], [state]) for row in logits)


def draw_tokens(coins: BatchCoins, laws: list[np.ndarray]) -> list[np.ndarray]:
    """A token of each law, at positions of their own."""
    return [coins.sample(law, at) for law, at in zip(laws, _PLACES, strict=True)]


_PLACES = [At(np.array([0]), np.array([-1]), np.array([position])) for position in range(8)]


def decode(
    engine: Engine,
    prompt: list[int],
    params: SamplingParams,
    known: dict[str, list[int]] | None = None,
    text: list[int] | None = None,
) -> tuple[Request, float]:
    """Decode one prompt; gives the request and the seconds after its first step."""
    (request,) = engine.submit(prompt, params)
    if known is not None and text is not None:
        known[request.request_id] = prompt + text
    engine.step()
    engine.step_seconds = 0.0
    while engine.num_unfinished:
        engine.step()
    return request, engine.step_seconds


def outside_the_passes(loaded: LoadedModel, prompt: list[int], num_tokens: int, rounds: int) -> dict[str, float]:
    """Share of a step outside drafting and the target's pass, with seven right draft tokens a step."""
    params = SamplingParams(temperature=1.0, top_p=0.95, seed=1, max_tokens=num_tokens, ignore_eos=True)
    text = decode(Engine(loaded.target), prompt, params)[0].output
    shares, others = [], []
    for _ in range(rounds + 1):
        known: dict[str, list[int]] = {}
        engine = Engine(loaded.target, [ScriptedDrafter(all_right(known))], Fixed(7))
        (request,) = engine.submit(prompt, params)
        known[request.request_id] = prompt + text
        engine.step()
        engine.step_seconds = 0.0
        before = request.stats.verify_seconds + request.stats.draft_seconds, request.stats.steps
        while engine.num_unfinished:
            engine.step()
        passes = request.stats.verify_seconds + request.stats.draft_seconds - before[0]
        shares.append(1 - passes / engine.step_seconds)
        others.append((engine.step_seconds - passes) / (request.stats.steps - before[1]))
    return {"share": statistics.median(shares[1:]), "seconds_a_step": statistics.median(others[1:])}


def engine_over_plain_loop(loaded: LoadedModel, prompt: list[int], num_tokens: int, rounds: int) -> float:
    """Seconds of plain decoding through the engine over seconds of a bare loop."""
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    engine_seconds, loop_seconds = [], []
    for _ in range(rounds + 1):
        engine_seconds.append(timed(lambda: decode(Engine(loaded.target), prompt, params)))
        loop_seconds.append(timed(lambda: plain_loop(loaded, prompt, num_tokens)))
    return statistics.median(engine_seconds[1:]) / statistics.median(loop_seconds[1:])


def plain_loop(loaded: LoadedModel, prompt: list[int], num_tokens: int) -> list[int]:
    """Greedy decoding with nothing but passes and an argmax."""
    target = loaded.target
    cache = target.make_cache()
    slot = cache.acquire()
    cache.reserve(slot, len(prompt) + num_tokens)
    output: list[int] = []
    fed = prompt
    while len(output) < num_tokens:
        start = len(prompt) + len(output) - 1 if output else 0
        inputs = ForwardInputs(
            np.asarray(fed, dtype=np.int64),
            np.arange(start, start + len(fed)),
            [Segment(slot, 0, len(fed), start)],
            np.asarray([len(fed) - 1]),
        )
        output.append(int(target.forward(inputs, cache).logits[0].numpy().argmax()))
        fed = output[-1:]
    return output


def speedup(loaded: LoadedModel, prompt: list[int], num_tokens: int, rounds: int, wrong: float) -> dict[str, float]:
    """Measured against predicted speed-up of a drafter whose tokens are wrong with a given probability."""
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    plain, fast, parts = [], [], []
    for _ in range(rounds + 1):
        off, seconds = decode(Engine(loaded.target), prompt, params)
        plain.append((seconds / (off.num_output - 1), off.stats.verify_seconds))
        known: dict[str, list[int]] = {}
        script = wrong_half(known, loaded.target.vocab_size, probability=wrong)
        on, seconds = decode(
            Engine(loaded.target, [ScriptedDrafter(script)], Fixed(7)), prompt, params, known, off.output
        )
        fast.append(seconds / (on.num_output - 1))
        tau = (on.num_output - 1) / (on.stats.steps - 1)
        parts.append((tau, seconds / (on.stats.steps - 1), on.stats.draft_seconds / on.stats.steps))
    measured = statistics.median(p[0] for p in plain[1:]) / statistics.median(fast[1:])
    tau = statistics.median(part[0] for part in parts[1:])
    pass_ratio = wide_pass_ratio(loaded, len(prompt) + num_tokens // 2)
    draft = statistics.median(part[2] for part in parts[1:]) / statistics.median(p[0] for p in plain[1:])
    predicted = tau / (draft + pass_ratio)
    return {"wrong": wrong, "tau": tau, "measured": measured, "predicted": predicted, "ratio": measured / predicted}


def wide_pass_ratio(loaded: LoadedModel, context: int) -> float:
    """Seconds of an eight-row pass over those of a one-row pass."""
    from outrider.engine.calibrate import measure_passes

    one, eight = measure_passes(loaded.target, [1, 8], [context], repeats=21)
    return eight.seconds / one.seconds


def timed(action: Callable[[], object]) -> float:
    """Seconds of a call."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
