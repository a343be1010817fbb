"""Which rule is worth what: tokens a pass of MATCH, TOKEN, BLOCK and TRAVERSAL with a draft model that samples.

    python benchmarks/rules.py --model TARGET.gguf --draft DRAFT.gguf --prompts HumanEval.jsonl.gz --output rules.jsonl
    python benchmarks/rules.py --verification --model TARGET.gguf

Every finished text is one line of the output, so a stopped run goes on where it was; `--seconds` stops it itself. All
rules of a prompt are run before the next prompt. Beside the figures stands what the closed forms say for the same
prompts: along the texts of MATCH the laws of both models are compared at each position, which gives the acceptance of
the best exact rule for one draft token, 1 - TV, that of MATCH with shared noise, and so what sharing noise costs.
`--verification` times the judging of a tree of 32 nodes against the pass that computes its logits.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from outrider.analysis.theory import acceptance, coupled_acceptance
from outrider.core.coins import BatchCoins, Stream
from outrider.core.params import Rule, SamplingParams, Speculation
from outrider.core.process import History, Processor
from outrider.core.tree import path
from outrider.core.types import Proposal
from outrider.core.verify import verify
from outrider.drafters.pairing import build_draft_model
from outrider.engine.calibrate import measure_passes
from outrider.engine.engine import Engine
from outrider.models.base import ForwardInputs, Segment, Target
from outrider.models.loading import load_model
from outrider.policies.fixed import Fixed
from outrider.workloads import encode_item, read_prompts

CHAIN, TREE = (1, 4), (3, 12)
WAYS = {
    "MATCH chain": (Rule.MATCH, CHAIN),
    "TOKEN chain": (Rule.TOKEN, CHAIN),
    "BLOCK chain": (Rule.BLOCK, CHAIN),
    "MATCH tree": (Rule.MATCH, TREE),
    "TOKEN tree": (Rule.TOKEN, TREE),
    "TRAVERSAL tree": (Rule.TRAVERSAL, TREE),
}
DEPTH = 4


def main() -> None:
    """Run what is missing and report."""
    options = read_options()
    torch.set_num_threads(options.threads)
    if options.verification:
        print(json.dumps(time_verification(load_model(options.model).target, options.rounds), indent=2))
        return
    done = read_done(options.output)
    stop = float("inf") if options.seconds is None else time.monotonic() + options.seconds
    target, draft = load_model(options.model), load_model(options.draft)
    engine = Engine(target.target, [build_draft_model(draft, target)], Fixed(DEPTH))  # one: it reads each prompt once
    prompts = list(read_prompts(options.prompts))[:: options.every][: options.limit]
    with options.output.open("a") as output:
        for number, item in enumerate(prompts):
            tokens = encode_item(target.tokenizer, item)
            for temperature in options.temperatures:
                for record in texts(engine, draft.target, tokens, number, temperature, done, options.max_tokens):
                    done[record["prompt"], record["temperature"], record["way"]] = record
                    output.write(json.dumps(record) + "\n")
                    output.flush()
                    if time.monotonic() > stop:
                        show(summary(done), options.json)
                        return
    show(summary(done), options.json)


def read_options() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--every", type=int, default=8, help="take every n-th prompt of the file")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.7, 1.0])
    parser.add_argument("--seconds", type=float, default=None, help="begin nothing after this time")
    parser.add_argument("--verification", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def read_done(file: Path) -> dict[tuple[int, float, str], dict[str, Any]]:
    """Texts of an earlier run; a line that a kill cut off is done again."""
    done = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        done[record["prompt"], record["temperature"], record["way"]] = record
    if done and not file.read_bytes().endswith(b"\n"):
        with file.open("a") as output:
            output.write("\n")
    return done


def texts(
    engine: Engine,
    draft: Target,
    prompt: list[int],
    number: int,
    temperature: float,
    done: dict[tuple[int, float, str], dict[str, Any]],
    max_tokens: int,
) -> Iterator[dict[str, Any]]:
    """Records of one prompt that are missing."""
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=number, ignore_eos=True)
    for way, (rule, (width, nodes)) in WAYS.items():
        if (number, temperature, way) in done:
            continue
        tree = None if width == 1 else (width, nodes)
        (request,) = engine.submit(prompt, params, Speculation(rule=rule, length=DEPTH, tree=tree))
        while engine.num_unfinished:
            engine.step()
        stats = request.stats
        sums = {name: getattr(stats, name) for name in ("steps", "emitted", "drafted", "accepted", "rejections")}
        record = {"prompt": number, "temperature": temperature, "way": way, **sums}
        if way == "MATCH chain":
            record |= theory(engine.target, draft, request.tokens, request.num_prompt, temperature)
        yield record


def theory(target: Target, draft: Target, tokens: list[int], num_prompt: int, temperature: float) -> dict[str, Any]:
    """What the closed forms say of the positions of a text: sums over them."""
    p, q = (laws(model, tokens, num_prompt, temperature) for model in (target, draft))
    width = min(p.shape[1], q.shape[1])
    both = [(x[:width] / x[:width].sum(), y[:width] / y[:width].sum()) for x, y in zip(p, q, strict=True)]
    return {
        "positions": len(both),
        "optimal": sum(acceptance(x, y) for x, y in both),
        "coupled": sum(coupled_acceptance(x, y) for x, y in both),
    }


def laws(model: Target, tokens: list[int], num_prompt: int, temperature: float) -> Any:
    """[n, V] laws of the output tokens, the text given."""
    cache = model.make_cache()
    slot = cache.acquire()
    cache.reserve(slot, len(tokens))
    rows = np.arange(num_prompt - 1, len(tokens) - 1)
    inputs = ForwardInputs(
        np.asarray(tokens), np.arange(len(tokens)), [Segment(slot, 0, len(tokens), 0)], logits_rows=rows
    )
    return torch.softmax(model.forward(inputs, cache).logits.double() / temperature, dim=-1).numpy()


def summary(done: dict[tuple[int, float, str], dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each temperature and way, over the prompts for which all ways are done."""
    whole = {(n, t) for n, t, _ in done if all((n, t, way) in done for way in WAYS)}
    rows = []
    for temperature in sorted({t for _, t in whole}):
        for way in WAYS:
            sums: defaultdict[str, float] = defaultdict(float)
            for number, t in whole:
                if t == temperature:
                    for name, value in done[number, t, way].items():
                        if name not in ("prompt", "temperature", "way"):
                            sums[name] += value
            row = {
                "temperature": temperature,
                "way": way,
                "prompts": sum(t == temperature for _, t in whole),
                "tokens_a_pass": sums["emitted"] / sums["steps"],
                "acceptance_rate": sums["accepted"] / (sums["accepted"] + sums["rejections"]),
            }
            if sums["positions"]:
                row["predicted_match"] = sums["coupled"] / sums["positions"]
                row["predicted_optimal"] = sums["optimal"] / sums["positions"]
            rows.append(row)
    return rows


def show(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print the summary."""
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(
            f"T={row['temperature']:g} {row['way']:15} {row['prompts']} prompts, "
            f"{row['tokens_a_pass']:.2f} tokens a pass, acceptance {row['acceptance_rate']:.3f}"
            + (
                f"; predicted {row['predicted_match']:.3f}, best exact rule {row['predicted_optimal']:.3f}"
                if "predicted_match" in row
                else ""
            )
        )


# -- what judging costs ------------------------------------------------------------------------------------------------


def time_verification(target: Target, rounds: int, num_nodes: int = 32) -> dict[str, Any]:
    """Medians of judging a tree of 32 nodes, laws included, and of the pass of 33 rows at context 512."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        for rule in (Rule.MATCH, Rule.TOKEN, Rule.TRAVERSAL):
            judge = judging(rule, target.vocab_size, num_nodes, number)
            started = time.perf_counter()
            judge()
            seconds[rule.name].append(time.perf_counter() - started)
    (cost,) = measure_passes(target, [1 + num_nodes], [512], repeats=rounds)
    medians = {f"{name}_seconds": statistics.median(values) for name, values in seconds.items()}
    shares = {f"{name}_share_of_pass": statistics.median(v) / cost.seconds for name, v in seconds.items()}
    return {"vocab_size": target.vocab_size, "nodes": num_nodes, "pass_seconds": cost.seconds, **medians, **shares}


def judging(rule: Rule, vocab_size: int, num_nodes: int, seed: int) -> Callable[[], Any]:
    """The judging of one tree with two children a node whose draft is near the target."""
    noise = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn((num_nodes + 1, vocab_size), generator=noise)
    parents = np.asarray([(node - 2) // 2 if node > 1 else -1 for node in range(num_nodes)])
    rows = list(dict.fromkeys(parents.tolist()))
    drafts = torch.softmax(logits[[1 + row for row in rows]] + 0.3, dim=-1).numpy()
    tokens = np.empty(num_nodes, dtype=np.int64)
    for node, parent in enumerate(parents.tolist()):
        below = [n for n in range(num_nodes) if parents[n] == parent]
        tokens[node] = np.argsort(-drafts[rows.index(parent)], kind="stable")[below.index(node)]
    from outrider.core.params import Draw

    kind = Draw.WITHOUT_REPLACEMENT if rule is not Rule.MATCH else Draw.DETERMINISTIC
    tree = Proposal(
        tokens,
        parents,
        np.full(num_nodes, int(kind)),
        ("draft",) * num_nodes,
        np.ones(num_nodes),
        None if rule is Rule.MATCH else torch.from_numpy(drafts),
    )
    processor = Processor(SamplingParams(temperature=1.0), vocab_size)
    start = processor.start(History([1, 2, 3]))

    class Laws:
        def at(self, _requests: Any, nodes: Any) -> Any:
            states = []
            for node in nodes.tolist():
                state = start
                for above in path(parents, node):
                    state = state.child(int(tokens[above]))
                states.append(state)
            return processor.law(logits[[1 + node for node in nodes.tolist()]], states)

    return lambda: verify([rule], Laws(), [tree], BatchCoins([Stream(seed, 0)]), [3])


if __name__ == "__main__":
    main()
