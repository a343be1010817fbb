"""Where the time of a pass goes, operation by operation with PyTorch and in the native layers; draws a picture.

    python benchmarks/pass_parts.py --model smollm2 --picture docs/pictures/pass.svg > parts.json

The three forms take turns. The native layers time their own parts; of PyTorch's operations the profiler gives the
shares, which are applied to the time of the pass without it. "between" is whatever is neither a product nor attention:
norms, rotation, writing to the cache, activation, the embedding, and Python.
"""

import argparse
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from outrider.engine.calibrate import PassCost, measure_passes
from outrider.models.decoder import Decoder, Kernels
from outrider.models.loading import open_checkpoint
from outrider.models.loading.checkpoint import Checkpoint

FORMS: dict[str, tuple[Kernels, bool]] = {
    "PyTorch, bfloat16": ("packed", False),
    "native, bfloat16": ("native", False),
    "native, blocks": ("native", True),
}
PARTS = ("products", "attention", "between")
_PRODUCTS = ("queries, keys and values", "output product", "gated products", "down product", "head")
_PRODUCT_OPERATIONS = ("mkldnn::_linear_pointwise", "mkl::_mkl_linear", "aten::addmm", "aten::mm")


def native_parts(cost: PassCost) -> dict[str, float]:
    """Seconds of the three parts, from what the native layers tell."""
    products, attention = sum(cost.parts[name] for name in _PRODUCTS), cost.parts["attention"]
    return {"products": products, "attention": attention, "between": cost.seconds - products - attention}


def pytorch_parts(decoder: Decoder, cost: PassCost) -> dict[str, float]:
    """Seconds of the three parts, by the profiler's shares."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        measure_passes(decoder, [cost.width], [cost.context], repeats=5)
    times = {event.key: event.self_cpu_time_total for event in profiled.key_averages()}
    products = sum(time for name, time in times.items() if name in _PRODUCT_OPERATIONS)
    attention = sum(time for name, time in times.items() if "attention" in name)
    total = sum(times.values())
    shares = {"products": products / total, "attention": attention / total}
    shares["between"] = 1 - sum(shares.values())
    return {part: share * cost.seconds for part, share in shares.items()}


def main() -> None:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--widths", default="1,8,16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    checkpoint = open_checkpoint(options.model)
    if not isinstance(checkpoint, Checkpoint):
        parser.error(f"--model is {options.model}, which transformers runs; give one that the decoder runs.")
    decoders = {
        name: Decoder(checkpoint.config, checkpoint.source, dtype=torch.bfloat16, kernels=kernels, stored_blocks=blocks)
        for name, (kernels, blocks) in FORMS.items()
    }
    rows: list[dict[str, Any]] = []
    for width in map(int, options.widths.split(",")):
        found: dict[str, list[Mapping[str, float]]] = {name: [] for name in decoders}
        for _ in range(options.rounds):
            for name, decoder in decoders.items():
                is_native = decoder.kernels == "native"
                cost = measure_passes(decoder, [width], [options.context], repeats=11, with_parts=is_native)[0]
                found[name].append(native_parts(cost) if is_native else pytorch_parts(decoder, cost))
        rows += [
            {"form": name, "rows": width, "part": part, "ms": 1e3 * statistics.median(own[part] for own in parts)}
            for name, parts in found.items()
            for part in PARTS
        ]
    print(json.dumps({"model": options.model, "context": options.context, "parts": rows}, indent=2))
    if options.picture is not None:
        options.picture.write_text(picture(rows) + "\n", encoding="utf-8")


def picture(rows: list[dict[str, Any]]) -> str:
    """The parts as stacked bars: a group for each number of rows, a bar for each form."""
    import vl_convert

    chart = {
        "background": "white",
        "padding": 12,
        "data": {"values": [row | {"order": PARTS.index(row["part"])} for row in rows]},
        "mark": "bar",
        "width": 460,
        "height": {"step": 22},
        "encoding": {
            "row": {"field": "rows", "type": "ordinal", "title": "rows of a pass"},
            "y": {"field": "form", "type": "nominal", "title": None, "sort": list(FORMS)},
            "x": {"field": "ms", "type": "quantitative", "title": "milliseconds"},
            "color": {
                "field": "part",
                "type": "nominal",
                "title": None,
                "sort": list(PARTS),
                "scale": {"domain": list(PARTS), "range": ["#1c4fd8", "#d9600b", "#adb5bd"]},
                "legend": {"orient": "bottom"},
            },
            "order": {"field": "order", "type": "quantitative"},
        },
        "config": {"view": {"stroke": None}},
    }
    return str(vl_convert.vegalite_to_svg(chart))


if __name__ == "__main__":
    main()
