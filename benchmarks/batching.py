"""How many tokens a second many requests get together, and what a step costs outside the passes.

    python benchmarks/batching.py --model smollm2 --json

Each case runs in turn within one process, the rounds interleaved, so that a machine that slows down slows all. Tokens
are counted from the step after all prompts were read. Off is plain decoding; `ngram` and `suffix` draft for the same
prompts, which ask for text that repeats itself. The last part has 16 requests with three draft tokens each, of which
seven in ten are right: the share of a step outside drafting and the target's pass.
"""

import argparse
import json
import statistics
import sys
import time

import torch

from outrider.core.params import SamplingParams, Speculation
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.scripted import ScriptedDrafter, wrong_half
from outrider.drafters.suffix import SuffixDrafter
from outrider.engine.engine import Engine
from outrider.models.loading import LoadedModel, load_model
from outrider.policies.fixed import Fixed
from outrider.policies.registry import build_policy

TOPICS = ["dog", "cat", "bird", "fish", "tree", "house", "river", "road"]
TOPICS += ["ship", "train", "star", "moon", "king", "queen", "book", "song"]
ASK = "Copy this sentence four times, once a line: The old {0} saw another {0} near the {0}, and the {0} was glad."


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    loaded = load_model(options.model, dtype=options.dtype)
    report = {
        "model": options.model,
        "dtype": options.dtype,
        "tokens": options.tokens,
        "threads": options.threads,
        "tokens_a_second": throughput(loaded, options.sizes, options.tokens, options.rounds),
        "outside_the_passes": [outside(loaded, 16, options.tokens, temp, options.rounds) for temp in (0.0, 0.8)],
    }
    if options.json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
        return
    for row in [*report["tokens_a_second"], *report["outside_the_passes"]]:
        print("  ".join(f"{name} {value}" for name, value in row.items()))


def prompts(loaded: LoadedModel, count: int) -> list[list[int]]:
    """Prompts of one kind, each about another thing."""
    asked = [ASK.format(TOPICS[number % len(TOPICS)]) for number in range(count)]
    return [loaded.tokenizer.apply_chat([{"role": "user", "content": text}]) for text in asked]


def throughput(loaded: LoadedModel, sizes: list[int], tokens: int, rounds: int) -> list[dict[str, object]]:
    """Decode tokens a second at each number of requests, off and with two drafters; median over the rounds."""
    kinds = {"off": (), "ngram": (NgramDrafter(),), "suffix": (SuffixDrafter(),)}
    found: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for kind, drafters in kinds.items():
            for size in sizes:
                policy = build_policy("heuristic")
                engine = Engine(loaded.target, drafters, policy, tokenizer=loaded.tokenizer)
                found.setdefault((kind, size), []).append(decode_rate(engine, prompts(loaded, size), tokens))
    medians = {case: statistics.median(rates) for case, rates in found.items()}
    return [
        {
            "drafter": kind,
            "requests": size,
            "tokens_a_second": round(rate, 1),
            "times_off_at_1": round(rate / medians["off", sizes[0]], 2),
            "times_off": round(rate / medians["off", size], 2),
        }
        for (kind, size), rate in medians.items()
    ]


def decode_rate(engine: Engine, texts: list[list[int]], tokens: int) -> float:
    """Tokens a second of all requests together, once all their prompts are read."""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    requests = [request for text in texts for request in engine.submit(text, params)]
    while any(request.num_output == 0 for request in requests):
        engine.step()
    before, started = sum(request.num_output for request in requests), time.perf_counter()
    while engine.num_unfinished:
        engine.step()
    return (sum(request.num_output for request in requests) - before) / (time.perf_counter() - started)


def outside(loaded: LoadedModel, size: int, tokens: int, temperature: float, rounds: int) -> dict[str, object]:
    """Share of a step outside drafting and the target's pass, with three draft tokens a request."""
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=tokens, ignore_eos=True)
    texts = prompts(loaded, size)
    plain = Engine(loaded.target, tokenizer=loaded.tokenizer)
    requests = [plain.submit(text, params)[0] for text in texts]
    while plain.num_unfinished:
        plain.step()
    shares, milliseconds = [], []
    for _ in range(rounds):
        known: dict[str, list[int]] = {}
        script = wrong_half(known, loaded.target.vocab_size, probability=0.3)
        engine = Engine(loaded.target, [ScriptedDrafter(script)], Fixed(3), tokenizer=loaded.tokenizer)
        for text, request in zip(texts, requests, strict=True):
            (again,) = engine.submit(text, params, Speculation(length=3))
            known[again.request_id] = [*text, *request.output]
        while engine.scheduler.waiting or any(r.num_output == 0 for r in engine.scheduler.running):
            engine.step()
        before, engine.step_seconds, steps = passes(engine), 0.0, 0
        while engine.num_unfinished == size:  # full passes only
            engine.step()
            steps += 1
        rest = engine.step_seconds - (passes(engine) - before)
        shares.append(rest / engine.step_seconds)
        milliseconds.append(1e3 * rest / steps)
    return {
        "requests": size,
        "temperature": temperature,
        "share": round(statistics.median(shares), 3),
        "milliseconds_a_step": round(statistics.median(milliseconds), 2),
    }


def passes(engine: Engine) -> float:
    """Seconds of drafting and of target passes so far."""
    return engine.stats.draft_seconds + engine.stats.verify_seconds


if __name__ == "__main__":
    main()
