"""Does speculation change a single token? Texts with it on against texts with it off, prompt by prompt.

    python benchmarks/exactness.py --prompts question.jsonl --output exactness.jsonl

Prompts are lines with a `prompt` text, or with `turns` of which the first is taken. Every finished text is one line of
the output, so a stopped run goes on where it was; `--seconds` stops it itself. With `--tree 8x31` the drafters propose
trees (8 children a node and 31 nodes at most). Texts without speculation are made alone, the others as `--concurrency`
says. Prompts are taken from all over the file from the start, so that a part of a run says something of the whole.
Prints, for each way of running, temperature and drafter, how many texts are equal.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from outrider.core.params import SamplingParams, Speculation
from outrider.drafters.base import Drafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.recycling import RecyclingDrafter
from outrider.drafters.scripted import ScriptedDrafter, wrong_half, wrong_half_trees
from outrider.drafters.suffix import SuffixDrafter
from outrider.engine.engine import Engine
from outrider.engine.generate import encode_prompt
from outrider.models.loading import LoadedModel, load_model
from outrider.policies.fixed import Fixed

DRAFTERS = ("ngram", "scripted", "suffix", "recycling")


@dataclass(frozen=True)
class Way:
    """One way to make a text: type of the weights, requests that share a pass, temperature, drafter ("off" without)."""

    dtype: str
    concurrency: int
    temperature: float
    drafter: str

    def __str__(self) -> str:
        """As the report names it."""
        together = "alone" if self.concurrency == 1 else f"{self.concurrency} at a time"
        return f"{self.dtype}, {together}, T={self.temperature:g}, {self.drafter}"

    @property
    def plain(self) -> "Way":
        """The way that it is compared with."""
        return Way(self.dtype, 1, self.temperature, "off")


Key = tuple[Way, int]  # and the number of the prompt
Done = dict[Key, dict[str, Any]]


def main() -> None:
    """Run what is missing and report."""
    options = read_options()
    prompts = read_prompts(options.prompts, options.limit)
    done = read_results(options.output)
    stop = float("inf") if options.seconds is None else time.monotonic() + options.seconds
    models: dict[str, LoadedModel] = {}
    with append_to(options.output) as output:
        for way, batch in work(options, len(prompts), done):
            if time.monotonic() > stop:
                break
            if way.dtype not in models:
                models[way.dtype] = load_model(options.model, dtype=way.dtype)
            for record in run_batch(models[way.dtype], prompts, batch, way, options, done):
                done[key_of(record)] = record
                output.write(json.dumps(record) + "\n")
            output.flush()
    report(done, ways(options))


def read_options() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtypes", nargs="+", default=["auto"])
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=None, help="begin nothing after this time")
    parser.add_argument("--block", type=int, default=60, help="prompts that are done in every way before the next ones")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--length", type=int, default=7, help="draft tokens a step, the depth of a tree")
    parser.add_argument("--tree", default=None, help="width x nodes, as in 8x31; left out: chains")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1], help="requests that share a pass")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--drafters", nargs="+", choices=DRAFTERS, default=["ngram", "scripted"])
    return parser.parse_args()


def ways(options: argparse.Namespace) -> list[Way]:
    """All ways that are asked for, each plain one before those that are compared with it."""
    found = []
    for dtype in options.dtypes:
        for temperature in options.temperatures:
            found.append(Way(dtype, 1, temperature, "off"))
            found += [Way(dtype, n, temperature, name) for n in options.concurrency for name in options.drafters]
    return found


def work(options: argparse.Namespace, num_prompts: int, done: Done) -> Iterator[tuple[Way, list[int]]]:
    """Batches of missing texts; all ways of a block of prompts before the next block."""
    stride = max(1, num_prompts // options.block)
    order = sorted(range(num_prompts), key=lambda number: number % stride)
    for first in range(0, num_prompts, options.block):
        for way in ways(options):
            missing = [n for n in order[first : first + options.block] if (way, n) not in done]
            for start in range(0, len(missing), way.concurrency):
                yield way, missing[start : start + way.concurrency]


def read_prompts(path: Path, limit: int | None) -> list[str]:
    """First turns of a file, spread over it where only some are wanted."""
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    texts = [row["turns"][0] if "turns" in row else row["prompt"] for row in rows]
    return texts if limit is None or limit >= len(texts) else [texts[i * len(texts) // limit] for i in range(limit)]


def key_of(record: Mapping[str, Any]) -> Key:
    """What a record is about."""
    way = Way(
        record.get("dtype", "auto"), record.get("concurrency", 1), float(record["temperature"]), record["drafter"]
    )
    return way, record["prompt"]


def read_results(path: Path) -> Done:
    """Texts of an earlier run; a line that a kill cut off is left out and so done again."""
    results: Done = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        results[key_of(record)] = record
    return results


def append_to(path: Path) -> TextIO:
    """The file, open to add whole lines: what a kill cut off is closed by a line end."""
    cut = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
    output = path.open("a")
    if cut:
        output.write("\n")
    return output


def make_drafter(name: str, texts: Mapping[str, Sequence[int]], vocab_size: int, *, trees: bool) -> list[Drafter]:
    """The drafter of a way; none where speculation is off."""
    match name:
        case "off":
            return []
        case "ngram":
            return [NgramDrafter(4, 1)]
        case "suffix":
            return [SuffixDrafter()]
        case "recycling":
            return [RecyclingDrafter()]
    return [ScriptedDrafter((wrong_half_trees if trees else wrong_half)(texts, vocab_size))]


def run_batch(
    loaded: LoadedModel,
    prompts: Sequence[str],
    numbers: Sequence[int],
    way: Way,
    options: argparse.Namespace,
    done: Done,
) -> list[dict[str, Any]]:
    """Generate for some prompts at once; one record each."""
    known: dict[str, list[int]] = {}
    drafters = make_drafter(way.drafter, known, loaded.target.vocab_size, trees=options.tree is not None)
    policy = Fixed(options.length)
    ends = loaded.defaults.stop_token_ids
    engine = Engine(loaded.target, drafters, policy, tokenizer=loaded.tokenizer, end_ids=ends)
    requests = []
    for number in numbers:
        tokens = encode_prompt(loaded.tokenizer, prompts[number])
        params = SamplingParams(temperature=way.temperature, max_tokens=options.max_tokens, seed=number)
        (request,) = engine.submit(tokens, params, Speculation(tree=options.tree))
        if way.drafter == "scripted":
            known[request.request_id] = tokens + done[way.plain, number]["tokens"]
        requests.append(request)
    while engine.num_unfinished:
        engine.step()
    return [
        {
            "dtype": way.dtype,
            "concurrency": way.concurrency,
            "temperature": way.temperature,
            "drafter": way.drafter,
            "prompt": number,
            "tokens": request.output,
            "steps": request.stats.steps,
            "drafted_steps": request.stats.drafted_steps,
            "drafted": request.stats.drafted,
            "accepted": request.stats.accepted,
        }
        for number, request in zip(numbers, requests, strict=True)
    ]


def report(done: Done, asked: Sequence[Way]) -> None:
    """Print one line for each way, over the prompts that are done."""
    for way in asked:
        numbers = [n for (other, n) in done if other == way and (way.plain, n) in done]
        if way.drafter == "off" or not numbers:
            continue
        sums: defaultdict[str, int] = defaultdict(int)
        for number in numbers:
            record = done[way, number]
            sums["equal"] += record["tokens"] == done[way.plain, number]["tokens"]
            for name in ("steps", "drafted_steps", "drafted", "accepted"):
                sums[name] += record[name]
            sums["emitted"] += len(record["tokens"])
        print(
            f"{way}: {sums['equal']} of {len(numbers)} texts equal; "
            f"{sums['drafted_steps'] / sums['steps']:.2f} of {sums['steps']} steps drafted, "
            f"{sums['drafted'] / max(1, sums['drafted_steps']):.1f} nodes each, "
            f"{sums['accepted']} draft tokens accepted, {sums['emitted'] / sums['steps']:.2f} tokens a pass"
        )


if __name__ == "__main__":
    main()
