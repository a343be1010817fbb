"""The price of the width-invariant mode: passes with it against the fastest that PyTorch does without it, taking turns.

python benchmarks/invariance_price.py --model smollm2
"""

import argparse
import json
import statistics

import torch

from outrider.engine.calibrate import measure_passes
from outrider.models.decoder import Decoder
from outrider.models.loading import open_checkpoint


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 8, 16, 32])
    parser.add_argument("--prompt", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    checkpoint = open_checkpoint(options.model)
    decoders = {
        True: Decoder(checkpoint.config, checkpoint.source),
        False: Decoder(checkpoint.config, checkpoint.source, kernels="packed", invariant=False),
    }
    seconds: dict[tuple[bool, int], list[float]] = {}
    for _ in range(options.rounds):
        for on, decoder in decoders.items():
            costs = measure_passes(decoder, options.widths, [options.context], repeats=7)
            costs += measure_passes(decoder, [options.prompt], [1], repeats=1)
            for cost in costs:
                seconds.setdefault((on, cost.width), []).append(cost.seconds)
    rows = []
    for width in (*options.widths, options.prompt):
        on, off = (statistics.median(seconds[mode, width]) for mode in (True, False))
        rows.append({"rows": width, "invariant_seconds": on, "other_seconds": off, "price": on / off})
    proof = decoders[True].proves_invariance()
    report = {"model": options.model, "kernels": decoders[True].kernels, "proves_invariance": proof, "passes": rows}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
