"""What the drafters without a model cost: reading a prompt, and proposing and observing in each step.

    python benchmarks/drafter_cost.py
    python benchmarks/drafter_cost.py --json > drafter_cost.json

No model runs. The text has a vocabulary and repeats like code; `periodic` and `constant` are the worst cases of indexes
that follow chains of earlier places. A step proposes 8 nodes and commits 1 to 4 tokens. Step times are the median and
the mean over the steps; the mean holds what is done seldom, such as growing a table, and what else the machine did.
Begin is the whole time over the prompt's tokens, the first proposal of `prediction` included, which reads the expected
text.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch

from outrider.core.coins import Stream
from outrider.core.history import History
from outrider.core.params import Draw, SamplingParams
from outrider.core.process import Processor
from outrider.core.types import Kept, Plan
from outrider.drafters.base import DraftContext, Observation
from outrider.drafters.registry import build_drafter

VOCAB = 50_000
DRAFTERS = ("ngram", "suffix", "suffix:shared=200000", "prediction", "recycling")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 8192, 100_000])
    parser.add_argument("--texts", nargs="+", default=[*TEXTS], choices=[*TEXTS])
    parser.add_argument("--drafters", nargs="+", default=DRAFTERS)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=4, help="children of a node at most; 1 drafts chains")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [
        measure(spec, text, length, options.steps, options.width)
        for spec in options.drafters
        for text in options.texts
        for length in options.lengths
    ]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    head = ("drafter", "text", "context", "begin ms/1000", "step ms", "mean ms", "bytes/token")
    print("{:22} {:9} {:>8} {:>14} {:>9} {:>9} {:>12}".format(*head))
    for row in rows:
        print("{:22} {:9} {:8} {:14.2f} {:9.3f} {:9.3f} {:12.0f}".format(*row.values()))


def code_like(count: int) -> list[int]:
    """Lines from a growing stock, mostly repeated, often slightly changed; token frequencies fall like 1 / rank."""
    rng = random.Random(5)
    ranks = [min(VOCAB - 1, int(10 ** (4.6 * rng.random()))) for _ in range(count)]
    stock: list[list[int]] = []
    text: list[int] = []
    while len(text) < count:
        if stock and rng.random() < 0.6:
            line = list(rng.choice(stock[-400:]))
            if rng.random() < 0.5:
                line[rng.randrange(len(line))] = rng.choice(ranks)
        else:
            line = [rng.choice(ranks) for _ in range(rng.randint(3, 14))]
            stock.append(line)
        text += [*line, 7]
    return text[:count]


TEXTS = {
    "code": code_like,
    "periodic": lambda count: [3 + place % 7 for place in range(count)],
    "constant": lambda count: [3] * count,
}


def measure(spec: str, kind: str, length: int, num_steps: int, width: int) -> dict[str, object]:
    """One drafter on one text."""
    text = TEXTS[kind](length + 4 * num_steps)
    drafter = build_drafter(spec)
    if "shared" in spec:
        fill(spec, drafter, text[:length])
    tokens = text[:length]
    asked = context(drafter.name, tokens, text[length // 2 :] if length > 4096 else text, width)
    started = time.perf_counter()
    drafter.begin("request", tokens)
    if drafter.needs.prediction:
        drafter.propose([asked])
    begin = time.perf_counter() - started
    seconds: list[float] = []
    place = length
    for number in range(num_steps):
        started = time.perf_counter()
        proposal = drafter.propose([asked])[0]
        spent = time.perf_counter() - started
        block = text[place : place + 1 + number % 4]
        place += len(block)
        tokens.extend(block)
        seen = ranks(drafter.needs.top_k, [tokens[-1 - len(block)], *proposal.tokens.tolist()])
        started = time.perf_counter()
        drafter.observe("request", Kept(tuple(block), (), len(block) - 1), seen)
        seconds.append(spent + time.perf_counter() - started)
    return {
        "drafter": spec,
        "text": kind,
        "context": length,
        "begin_ms_per_1000": begin / length * 1e6,
        "step_ms": statistics.median(seconds) * 1e3,
        "step_ms_mean": statistics.mean(seconds) * 1e3,
        "bytes_per_token": drafter.state_bytes / length,
    }


def fill(spec: str, drafter: object, text: Sequence[int]) -> None:
    """Leave finished texts behind, so that the shared store is in use."""
    for number in range(0, len(text), 500):
        piece = list(text[number : number + 500])
        drafter.begin("earlier", piece[:1])
        drafter.propose([context(spec.split(":")[0], piece[:1], None, 1, "earlier")])
        drafter.observe("earlier", Kept(tuple(piece[1:]), (), 0), Observation())
        drafter.end("earlier")


def context(
    name: str, tokens: list[int], prediction: Sequence[int] | None, width: int, request_id: str = "request"
) -> DraftContext:
    """What a drafter is asked; `tokens` grows in place."""
    processor = Processor(SamplingParams(), VOCAB)
    return DraftContext(
        request_id=request_id,
        tokens=tokens,
        num_prompt=len(tokens),
        plan=Plan(((name, 8),), 8, width),
        draw=Draw.DETERMINISTIC,
        processor=processor,
        state=processor.start(History(())),
        coins=Stream(0, 0),
        prediction=prediction,
    )


def ranks(count: int, fed: list[int]) -> Observation:
    """The target's first ranks of each row, made up: taking them from logits is the engine's work."""
    if not count:
        return Observation()
    top = (torch.tensor(fed)[:, None] * 31 + torch.arange(count)) % VOCAB
    return Observation(top_tokens=top, row_tokens=np.asarray(fed))


if __name__ == "__main__":
    main()
