"""Peak private memory of loading a model and generating with it, over its weights and cache.

    python benchmarks/memory.py --model smollm2

Samples the anonymous resident memory of the process (files that are only mapped do not count). Linux only.
"""

import argparse
import json

from outrider.bench.memory import PeakMemory, anonymous_bytes


def main() -> None:
    """Load, generate and print the peak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompt-tokens", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    if anonymous_bytes() is None:
        raise SystemExit("this system does not report private memory")
    with PeakMemory(0.002) as memory:
        report = measure(options, memory)
    print(json.dumps(report, indent=2))


def measure(options: argparse.Namespace, memory: PeakMemory) -> dict[str, object]:
    """Load and generate."""
    from outrider.core.params import SamplingParams
    from outrider.engine.generate import build_engine

    engine = build_engine(options.model)
    loading = memory.peak_bytes()
    (request,) = engine.submit(
        [(7919 * i + 11) % 4096 + 300 for i in range(options.prompt_tokens)],
        SamplingParams(max_tokens=options.tokens, ignore_eos=True),
    )
    cache_bytes = 0
    while engine.num_unfinished:
        cache_bytes = max(cache_bytes, engine.cache.nbytes)
        engine.step()
    weights, peak = engine.target.weight_bytes, memory.peak_bytes() or 0
    return {
        "model": options.model,
        "weight_bytes": weights,
        "cache_bytes": cache_bytes,
        "peak_private_bytes": peak,
        "peak_while_loading_bytes": loading,
        "peak_over_weights_and_cache_bytes": peak - weights - cache_bytes,
        "emitted": request.num_output,
    }


if __name__ == "__main__":
    main()
