"""Peak private memory of loading a model and generating with it, over its weights and cache.

    python benchmarks/memory.py --model smollm2

Samples the anonymous resident memory of the process (files that are only mapped do not count). Linux only.
"""

import argparse
import json
import threading
import time
from pathlib import Path


def anonymous_bytes() -> int:
    """Anonymous resident memory of this process now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not report RssAnon")


def main() -> None:
    """Load, generate and print the peak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompt-tokens", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    peaks = {"now": 0}
    is_done = threading.Event()

    def watch() -> None:
        while not is_done.is_set():
            peaks["now"] = max(peaks["now"], anonymous_bytes())
            time.sleep(0.002)

    threading.Thread(target=watch, daemon=True).start()
    from outrider.core.params import SamplingParams
    from outrider.engine.generate import build_engine

    engine = build_engine(options.model)
    loading = peaks["now"]
    (request,) = engine.submit(
        [(7919 * i + 11) % 4096 + 300 for i in range(options.prompt_tokens)],
        SamplingParams(max_tokens=options.tokens, ignore_eos=True),
    )
    cache_bytes = 0
    while engine.num_unfinished:
        cache_bytes = max(cache_bytes, engine.cache.nbytes)
        engine.step()
    is_done.set()
    weights = engine.target.weight_bytes
    report = {
        "model": options.model,
        "weight_bytes": weights,
        "cache_bytes": cache_bytes,
        "peak_private_bytes": peaks["now"],
        "peak_while_loading_bytes": loading,
        "peak_over_weights_and_cache_bytes": peaks["now"] - weights - cache_bytes,
        "emitted": request.num_output,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
