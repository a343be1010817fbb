"""The price of the width-invariant mode: passes with it against the fastest that PyTorch does without it, taking turns.

python benchmarks/invariance_price.py --model smollm2

`--tree 31` measures a pass of a tree of 31 nodes (32 rows) instead, the same tree on both sides.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from outrider.core.tree import depths
from outrider.engine.calibrate import measure_passes
from outrider.models.base import ForwardInputs, Segment, Target
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
    parser.add_argument("--tree", type=int, default=None, help="nodes of a tree; left out: chains and a prompt")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    checkpoint = open_checkpoint(options.model)
    decoders = {
        True: Decoder(checkpoint.config, checkpoint.source),
        False: Decoder(checkpoint.config, checkpoint.source, kernels="packed", invariant=False),
    }
    seconds: dict[tuple[bool, int], list[float]] = {}
    measures = {on: measuring(decoder, options) for on, decoder in decoders.items()}
    for _ in range(options.rounds):
        for on, measure in measures.items():
            for width, cost in measure():
                seconds.setdefault((on, width), []).append(cost)
    rows = []
    for width in dict.fromkeys(width for _, width in seconds):
        on, off = (statistics.median(seconds[mode, width]) for mode in (True, False))
        rows.append({"rows": width, "invariant_seconds": on, "other_seconds": off, "price": on / off})
    proof = decoders[True].proves_invariance()
    report = {"model": options.model, "kernels": decoders[True].kernels, "proves_invariance": proof, "passes": rows}
    print(json.dumps(report, indent=2))


def measuring(decoder: Decoder, options: argparse.Namespace) -> Callable[[], list[tuple[int, float]]]:
    """A function that gives (rows, seconds) of each kind of pass."""
    if options.tree is not None:
        tree = tree_timer(decoder, options.tree, options.context, repeats=7)
        return lambda: [(options.tree + 1, tree())]

    def chains() -> list[tuple[int, float]]:
        costs = measure_passes(decoder, options.widths, [options.context], repeats=7)
        costs += measure_passes(decoder, [options.prompt], [1], repeats=1)
        return [(cost.width, cost.seconds) for cost in costs]

    return chains


def tree_timer(target: Target, num_nodes: int, context: int, repeats: int) -> Callable[[], float]:
    """Gives the median of a pass of one row and a tree behind it in which each node has up to three children."""
    cache = target.make_cache()
    slot = cache.acquire()
    cache.reserve(slot, context + num_nodes + 1)
    fill = np.arange(context)
    target.forward(ForwardInputs(fill % 4096, fill, [Segment(slot, 0, context, 0)], fill[:0]), cache)
    cache.keep(slot, context, ())
    parents = np.asarray([(node - 3) // 3 if node > 2 else -1 for node in range(num_nodes)])
    positions = np.concatenate([[context], context + depths(parents)])
    tokens = (np.arange(num_nodes + 1) * 7919 + 11) % 4096
    segment = Segment(slot, 0, num_nodes + 1, context, parents)
    inputs = ForwardInputs(tokens, positions, [segment], np.arange(num_nodes + 1))

    def median() -> float:
        times = []
        for _ in range(repeats + 1):
            started = time.perf_counter()
            target.forward(inputs, cache)
            times.append(time.perf_counter() - started)
            cache.truncate(slot, context)
        return statistics.median(times[1:])

    return median


if __name__ == "__main__":
    main()
