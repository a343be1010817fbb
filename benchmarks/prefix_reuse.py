"""What a second turn saves when its beginning is cached, and whether it says the same.

    python benchmarks/prefix_reuse.py --model smollm2 --json

A first turn of so many tokens is answered; the second one goes on from it with a short question. Time to its first
token is taken with the rows reused and with nothing kept, in turns; both must give the same tokens and the same log
probabilities, bit for bit.
"""

import argparse
import json
import statistics
import sys
import time

import torch

from outrider.core.params import SamplingParams
from outrider.engine.config import EngineConfig
from outrider.engine.engine import Engine
from outrider.models.loading import LoadedModel, load_model

STORY = "The ship left the harbour at dawn, and nobody on the quay knew when it would come back. "


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--shared", type=int, default=1000, help="tokens that the second turn begins with")
    parser.add_argument("--new", type=int, default=20, help="tokens that are new in it")
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    report = measure(load_model(options.model), options)
    if options.json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
        return
    print("  ".join(f"{name} {value}" for name, value in report.items()))


def measure(loaded: LoadedModel, options: argparse.Namespace) -> dict[str, object]:
    """Seconds to the first token of a second turn, cold and warm."""
    whole = loaded.tokenizer.encode(STORY * (options.shared // 10))
    first, second = whole[: options.shared - 8], whole[: options.shared]
    times: dict[str, list[float]] = {"cold": [], "warm": []}
    texts: dict[str, object] = {}
    reused = 0
    for _ in range(options.rounds):
        for kind, kept in (("cold", 0), ("warm", 16_384)):
            engine = Engine(loaded.target, config=EngineConfig(prefix_tokens=kept))
            params = SamplingParams(max_tokens=8, ignore_eos=True)
            (turn,) = engine.submit(first, params)
            while engine.num_unfinished:
                engine.step()
            prompt = [*first, *turn.output, *whole[options.shared : options.shared + options.new]]
            seconds, text, reused = answer(engine, prompt, options.tokens)
            times[kind].append(seconds)
            texts[kind] = text
    cold, warm = (statistics.median(times[kind]) for kind in ("cold", "warm"))
    return {
        "model": options.model,
        "prompt_tokens": len(second) + options.new,
        "reused_tokens": reused,
        "cold_milliseconds": round(1e3 * cold, 1),
        "warm_milliseconds": round(1e3 * warm, 1),
        "times_faster": round(cold / warm, 1),
        "same_bits": texts["cold"] == texts["warm"],
    }


def answer(engine: Engine, prompt: list[int], tokens: int) -> tuple[float, object, int]:
    """Seconds to the first token, the tokens with their log probabilities, and the rows that were reused."""
    started = time.perf_counter()
    (request,) = engine.submit(prompt, SamplingParams(max_tokens=tokens, logprobs=1, ignore_eos=True))
    events = engine.step()
    while not request.num_output:
        events += engine.step()
    seconds = time.perf_counter() - started
    while engine.num_unfinished:
        events += engine.step()
    return seconds, [(event.tokens, event.logprobs) for event in events if event.tokens], request.num_reused


if __name__ == "__main__":
    main()
