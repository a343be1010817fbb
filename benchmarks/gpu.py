"""Does outrider work on a CUDA device, how fast is it there, and does speculation change its texts?

    python benchmarks/gpu.py > gpu.json
    python benchmarks/gpu.py --models SmolLM2-135M --seconds 120
    python benchmarks/gpu.py --device cpu --tiny    (the same code at a tiny shape)

The models have the shapes of known ones and random weights, made on the device: nothing is downloaded. One JSON
document goes to the standard output, progress and tracebacks to stderr. A part that does not begin within `--seconds`
is named under "left_out", one that raises an error under "failed"; the others go on, and the exit status is 1.

How it measures: passes of every kind take turns, medians of wall time with the device synchronised. "of_limit" is the
time that reading the weights once takes at the measured read bandwidth, over the time of the pass. Margins are logits
over temperature, with the noise of their place: small ones are rounding, large ones are faults. "as is" plays passes of
few rows that were recorded before (CUDA graphs; on a CPU the same operations once more), "invariant" records nothing.
"""

import argparse
import json
import math
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import gpu_graphs
import torch
from gpu_model import GREEDY, WARM, Size, generate, passes, speed, synchronisations, texts_kept, width_bits

from outrider.analysis.faults import HONEST
from outrider.bench.enumeration import ROUNDING, all_checks, cheapest_first, run_check
from outrider.core.params import Rule, Speculation
from outrider.drafters.draft_model import DraftModel
from outrider.engine.calibrate import read_bandwidth
from outrider.engine.engine import Engine
from outrider.engine.memory import machine_bytes
from outrider.models.config import ModelConfig
from outrider.models.decoder import Decoder
from outrider.models.shapes import expected_shapes
from outrider.models.toy import MemorySource, random_source, toy_config
from outrider.policies.fixed import Fixed

TINY = {"tiny": toy_config(vocab_size=512, hidden=64, context_length=1024)}


def _shape(family: str, vocab: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, dim: int) -> Any:
    return replace(
        toy_config(family=family, context_length=8192, tied_head=vocab != 128256),  # type: ignore[arg-type]
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
    )


SHAPES: dict[str, ModelConfig] = {
    "SmolLM2-135M": _shape("llama", 49152, 576, 1536, 30, 9, 3, 64),
    "Qwen2.5-0.5B": _shape("qwen2", 151936, 896, 4864, 24, 14, 2, 64),
    "Qwen2.5-1.5B": _shape("qwen2", 151936, 1536, 8960, 28, 12, 2, 128),
    "Llama-3-8B": _shape("llama", 128256, 4096, 14336, 32, 32, 8, 128),
}


class Run:
    """The parts of a run and what became of them, within a number of seconds."""

    def __init__(self, seconds: float) -> None:
        self.started, self.seconds = time.perf_counter(), seconds
        self.parts: dict[str, Any] = {}
        self.left_out: list[str] = []
        self.failed: dict[str, str] = {}

    def part(self, name: str, action: Callable[[], Any]) -> bool:
        """Do one part where there is time left; whether it gave a result."""
        begin = time.perf_counter() - self.started
        if begin > self.seconds:
            self.left_out.append(name)
            print(f"{begin:6.1f} s  {name}: left out, the time is over", file=sys.stderr)
            return False
        try:
            self.parts[name] = action()
        except Exception as error:  # whatever it is, the other parts are worth having
            self.failed[name] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        took = time.perf_counter() - self.started - begin
        print(f"{begin:6.1f} s  {name}: {'failed' if name in self.failed else 'done'} in {took:.1f} s", file=sys.stderr)
        return name in self.parts


class DeviceSource:
    """Random tensors made where they are needed; implements `config.TensorSource`. The embedding lies on the host."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._shapes, self._device = expected_shapes(config), device
        self._embedding = self.tensor("model.embed_tokens.weight").cpu()

    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        return frozenset(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return self._shapes[name]

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, the same at every call; matrices keep the size of their rows."""
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
        shape = self._shapes[name]
        noise = torch.randn(shape, generator=generator, device=self._device, dtype=torch.bfloat16)
        if name.endswith("norm.weight"):
            return 1 + 0.1 * noise
        gain = 3.0 if name in ("model.embed_tokens.weight", "lm_head.weight") else 1.0
        gain = 2.0 if "self_attn" in name else gain  # attention that picks a few positions: texts that depend on theirs
        return noise.mul_(gain / math.sqrt(shape[-1]) if len(shape) == 2 else 0.1)

    def rows(self, name: str, ids: torch.Tensor | Sequence[int]) -> torch.Tensor:
        """[len(ids), D] rows of a matrix."""
        held = self._embedding if name == "model.embed_tokens.weight" else self.tensor(name)
        return held.index_select(0, torch.as_tensor(ids).to(held.device))


def laws(rule: Rule, device: torch.device, size: Size) -> list[dict[str, Any]]:
    """The emitted law by enumeration of every coin, on tensors of the device and on NumPy arrays."""
    everything = cheapest_first(all_checks(rule))
    trees = [check for check in everything if max(check.widths, default=1) > 1]
    processed = [check for check in everything if check.processed != "plain" and check.plan is None]
    drafted = [check for check in everything if check.plan is not None]  # its drafts come from the CPU
    checks = [check for kind in (everything, processed, drafted, trees) for check in kind[: size.checks]]
    found = []
    for check in checks:
        ours = run_check(check, HONEST, lambda values: torch.tensor(values, device=device))
        host = run_check(check, HONEST)
        holds = abs(ours - host) < ROUNDING and (ours < ROUNDING or not rule.is_exact)
        found.append({"check": str(check), "difference": ours, "numpy": host, "holds": holds})
    return found


def two_devices(device: torch.device, size: Size) -> list[dict[str, Any]]:
    """A draft model on one device and a target of nearly its weights on the other, in float32: texts on against off."""
    config = toy_config(vocab_size=256, hidden=64, context_length=256)
    source, other = random_source(config, 1), random_source(config, 2)
    near = MemorySource({name: source.tensor(name) + 0.1 * other.tensor(name) for name in source.names()})
    places = {"cpu": torch.device("cpu"), "device": device}
    targets = {name: Decoder(config, source, dtype=torch.float32, device=place) for name, place in places.items()}
    drafts = {name: Decoder(config, near, dtype=torch.float32, device=place) for name, place in places.items()}
    found = []
    for target, draft in (("cpu", "device"), ("device", "cpu"), ("device", "device")):
        for rule in (Rule.MATCH, Rule.TOKEN, Rule.BLOCK):
            for params in (GREEDY, WARM):
                own = [[number + 1, 7, 5] for number in range(size.texts)]
                run = partial(generate, own=own, params=replace(params, max_tokens=size.tokens), known={}, texts=None)
                same = rule is Rule.MATCH or params.temperature == 0  # other rules keep the law, not the text
                texts = [request.output for request in run(Engine(targets[target]))]
                drafter = DraftModel(drafts[draft], config.vocab_size)
                requests = run(Engine(targets[target], [drafter], Fixed(4)), speculation=Speculation(rule=rule))
                found.append(
                    {
                        "target": target,
                        "draft": draft,
                        "rule": rule.name,
                        "temperature": params.temperature,
                        "texts": len(texts),
                        "equal": sum(one.output == text for one, text in zip(requests, texts, strict=True))
                        if same
                        else None,
                        "acceptance": sum(one.stats.accepted for one in requests)
                        / max(1, sum(one.stats.drafted for one in requests)),
                    }
                )
    return found


def model_parts(
    run: Run, title: str, config: ModelConfig, device: torch.device, size: Size, *, invariant: bool
) -> None:
    """All parts of one model in one mode."""
    needed = 2 * sum(math.prod(shape) for shape in expected_shapes(config).values())
    free = machine_bytes(str(device))
    if free is not None and free < 1.3 * needed + 2e9:
        run.left_out.append(f"{title}: {needed / 1e9:.1f} GB do not fit the {free / 1e9:.1f} GB that are free")
        return
    held: list[Decoder] = []

    def load() -> dict[str, Any]:
        source = DeviceSource(config, device)
        ways: dict[str, Any] = {"invariant": invariant, "kernels": "dense", "graphs": not invariant}
        held.append(Decoder(config, source, dtype=torch.bfloat16, device=device, **ways))
        return {"weight_bytes": held[0].weight_bytes}

    if run.part(f"{title}, loading", load):
        bandwidth = run.parts.get("read bandwidth", {}).get("bytes_per_second", math.nan)
        if not invariant:
            run.part(f"{title}, recorded passes", partial(gpu_graphs.closeness, held[0]))
            run.part(f"{title}, recorded texts", partial(gpu_graphs.texts, held[0], size))
            run.part(f"{title}, recorded times", partial(gpu_graphs.times, held[0], size))
        run.part(f"{title}, passes", partial(passes, held[0], bandwidth, size))
        run.part(f"{title}, bits at every width", partial(width_bits, held[0]))
        run.part(f"{title}, greedy texts", partial(texts_kept, held[0], size, GREEDY))
        run.part(f"{title}, texts at temperature 0.8", partial(texts_kept, held[0], size, WARM))
        run.part(f"{title}, speed", partial(speed, held[0], size))
        run.part(f"{title}, synchronisations", partial(synchronisations, held[0], size))
    held.clear()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="one tiny model, few repeats")
    parser.add_argument(
        "--models", nargs="+", choices=SHAPES, default=list(SHAPES), metavar="NAME", help=str([*SHAPES])
    )
    parser.add_argument("--seconds", type=float, default=400.0, help="no part begins later (default: 400)")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"device is {options.device!r}, but PyTorch sees no CUDA device here; give --device cpu --tiny.")
    device, run = torch.device(options.device), Run(options.seconds)
    size = Size(texts=2, tokens=12, repeats=1, checks=1) if options.tiny else Size()
    num_bytes = 1 << (26 if options.tiny else 32)
    run.part("read bandwidth", lambda: {"bytes_per_second": read_bandwidth(str(device), num_bytes)})
    for rule in Rule:
        run.part(f"laws of {rule.name}", partial(laws, rule, device, size))
    run.part("two devices", partial(two_devices, device, size))
    models = TINY if options.tiny else {name: SHAPES[name] for name in options.models}
    for mode, invariant in (("as is", False), ("invariant", True)):
        for name, config in models.items():
            model_parts(run, f"{name}, {mode}", config, device, size, invariant=invariant)
    report = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "torch": torch.__version__,
        "dtype": "bfloat16",
        "seconds": time.perf_counter() - run.started,
        "parts": run.parts,
        "left_out": run.left_out,
        "failed": run.failed,
    }
    print(json.dumps(report, indent=2))
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
