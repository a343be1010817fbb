"""Does speculation change a single token? Texts with it on against texts with it off, prompt by prompt.

    python benchmarks/exactness.py --prompts question.jsonl --output exactness.jsonl

Prompts are lines with a `prompt` text, or with `turns` of which the first is taken. Every finished text is one line of
the output, so a stopped run goes on where it was. Prints, for each temperature and drafter, how many texts are equal.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.progress import track

from outrider.core.params import SamplingParams, Speculation
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.scripted import ScriptedDrafter, wrong_half
from outrider.engine.engine import Engine
from outrider.engine.generate import encode_prompt
from outrider.models.loading import LoadedModel, load_model
from outrider.policies.fixed import Fixed

Key = tuple[float, str, int]  # temperature, drafter ("off" without), number of the prompt


def main() -> None:
    """Run what is missing and report."""
    options = read_options()
    prompts = read_prompts(options.prompts, options.limit)
    loaded = load_model(options.model)
    done = read_results(options.output)
    with append_to(options.output) as output:
        for temperature in options.temperatures:
            for drafter in ("off", *options.drafters):
                missing = [n for n in range(len(prompts)) if (temperature, drafter, n) not in done]
                batches = [missing[i : i + options.concurrency] for i in range(0, len(missing), options.concurrency)]
                for batch in track(batches, f"T={temperature} {drafter}"):
                    for record in run_batch(loaded, prompts, batch, temperature, drafter, options, done):
                        done[record["temperature"], record["drafter"], record["prompt"]] = record
                        output.write(json.dumps(record) + "\n")
                    output.flush()
    report(done, len(prompts), options)


def read_options() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--length", type=int, default=7)
    parser.add_argument("--concurrency", type=int, default=1, help="requests that share a pass")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--drafters", nargs="+", choices=["ngram", "scripted"], default=["ngram", "scripted"])
    return parser.parse_args()


def read_prompts(path: Path, limit: int | None) -> list[str]:
    """First turns of a file, spread over it where only some are wanted."""
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    texts = [row["turns"][0] if "turns" in row else row["prompt"] for row in rows]
    return texts if limit is None or limit >= len(texts) else [texts[i * len(texts) // limit] for i in range(limit)]


def read_results(path: Path) -> dict[Key, dict[str, Any]]:
    """Texts of an earlier run; a line that a kill cut off is left out and so done again."""
    results = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        results[record["temperature"], record["drafter"], record["prompt"]] = record
    return results


def append_to(path: Path) -> TextIO:
    """The file, open to add whole lines: what a kill cut off is closed by a line end."""
    cut = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
    output = path.open("a")
    if cut:
        output.write("\n")
    return output


def run_batch(
    loaded: LoadedModel,
    prompts: Sequence[str],
    numbers: Sequence[int],
    temperature: float,
    drafter: str,
    options: argparse.Namespace,
    done: dict[Key, dict[str, Any]],
) -> list[dict[str, Any]]:
    """Generate for some prompts at once; one record each."""
    known: dict[str, list[int]] = {}
    drafters = {
        "off": [],
        "ngram": [NgramDrafter(4, 1)],
        "scripted": [ScriptedDrafter(wrong_half(known, loaded.target.vocab_size))],
    }
    policy = Fixed(options.length)
    ends = loaded.defaults.stop_token_ids
    engine = Engine(loaded.target, drafters[drafter], policy, tokenizer=loaded.tokenizer, end_ids=ends)
    requests = []
    for number in numbers:
        tokens = encode_prompt(loaded.tokenizer, prompts[number])
        params = SamplingParams(temperature=temperature, max_tokens=options.max_tokens, seed=number)
        (request,) = engine.submit(tokens, params, Speculation())
        if drafter == "scripted":
            known[request.request_id] = tokens + done[temperature, "off", number]["tokens"]
        requests.append(request)
    while engine.num_unfinished:
        engine.step()
    return [
        {
            "temperature": temperature,
            "drafter": drafter,
            "prompt": number,
            "tokens": request.output,
            "steps": request.stats.steps,
            "drafted_steps": request.stats.drafted_steps,
            "drafted": request.stats.drafted,
            "accepted": request.stats.accepted,
        }
        for number, request in zip(numbers, requests, strict=True)
    ]


def report(done: dict[Key, dict[str, Any]], num_prompts: int, options: argparse.Namespace) -> None:
    """Print one line for each temperature and drafter."""
    for temperature in options.temperatures:
        for drafter in options.drafters:
            sums: defaultdict[str, int] = defaultdict(int)
            for number in range(num_prompts):
                record, plain = done[temperature, drafter, number], done[temperature, "off", number]
                sums["equal"] += record["tokens"] == plain["tokens"]
                for name in ("steps", "drafted_steps", "drafted", "accepted"):
                    sums[name] += record[name]
                sums["emitted"] += len(record["tokens"])
            print(
                f"T={temperature} {drafter}: {sums['equal']} of {num_prompts} texts equal; "
                f"{sums['drafted_steps'] / sums['steps']:.2f} of {sums['steps']} steps drafted, "
                f"{sums['accepted']} of {sums['drafted']} draft tokens accepted, "
                f"{sums['emitted'] / sums['steps']:.2f} tokens a pass"
            )


if __name__ == "__main__":
    main()
