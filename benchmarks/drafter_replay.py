"""Tokens a pass that drafters without a model would give on recorded code edits, beside transformers' prompt lookup.

    python benchmarks/drafter_replay.py edit_eval.jsonl --nodes 8
    python benchmarks/drafter_replay.py edit_eval.jsonl --nodes 15 --width 3 --json

The file has one JSON object a line with the texts `instruction`, `input` and `output`. The prompt holds instruction and
input, the prediction is the input, and the output is what the target is taken to say. No model runs; only a tokenizer
is read. `share` is the part of the tokens in blocks of three or more common to prediction and output (as difflib finds
them) that were accepted draft tokens, a mean over the texts. transformers drafts with its default n-gram size of 2.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from outrider.core.types import Plan, Proposal
from outrider.drafters.base import DraftContext, Drafter
from outrider.drafters.ensemble import Ensemble
from outrider.drafters.none import NoDrafter
from outrider.drafters.registry import build_drafter
from outrider.drafters.replaying import common_share, replay
from outrider.engine.generate import encode_prediction, encode_prompt
from outrider.models.loading import load_model

CASES = ("transformers", "ngram", "ngram:min=2", "suffix", "recycling", "prediction", "prediction+suffix")

Text = tuple[list[int], list[int], list[int]]
"""Prompt, prediction and output."""


class PromptLookup(NoDrafter):
    """transformers' own candidate generator."""

    name = "transformers"

    def propose(self, contexts: Sequence[DraftContext]) -> list[Proposal]:
        """One chain each."""
        return [self._propose(context) for context in contexts]

    def _propose(self, context: DraftContext) -> Proposal:
        generator = PromptLookupCandidateGenerator(num_output_tokens=context.budget(self.name), max_length=1 << 20)
        found = generator.get_candidates(torch.tensor([context.tokens]))[0][0, len(context.tokens) :]
        return Proposal.chain(found.tolist(), source=self.name)


class Several(Ensemble):
    """An ensemble as one drafter; every member gets the whole budget."""

    name = "several"

    def propose(self, contexts: Sequence[DraftContext]) -> list[Proposal]:
        """What the ensemble makes of its members."""
        asked = []
        for context in contexts:
            budget, plan = context.budget(self.name), context.plan
            members = tuple((name, budget) for name in self.names)
            shared = Plan(members, plan.max_depth, plan.max_width)
            fields = {name: getattr(context, name) for name in DraftContext.__slots__}
            asked.append(DraftContext(**fields | {"plan": shared}))
        return super().propose(asked)


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", default="smollm2", help="whose tokenizer and chat template are used")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--width", type=int, default=1)
    parser.add_argument("--drafters", nargs="+", default=CASES, help="+ joins several into one")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    texts = read(options.file, options.model)
    rows = [measure(case, texts, options.nodes, options.width) for case in options.drafters]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'drafter':20} {'tokens a pass':>14} {'drafted':>8} {'accepted':>9} {'share':>6}")
    for row in rows:
        print("{:20} {:14.3f} {:8} {:9} {:6.3f}".format(*row.values()))


def read(file: Path, model: str) -> list[Text]:
    """Prompt, prediction and output of each line, as tokens."""
    tokenizer = load_model(model).tokenizer
    texts = []
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        prompt = encode_prompt(tokenizer, f"{row['instruction']}\n```python\n{row['input']}\n```")
        texts.append((prompt, encode_prediction(tokenizer, row["input"]), encode_prediction(tokenizer, row["output"])))
    return texts


def make(case: str) -> Drafter:
    """A new drafter."""
    if case == "transformers":
        return PromptLookup()
    names = case.split("+")
    return build_drafter(case) if len(names) == 1 else Several([build_drafter(name) for name in names])


def measure(
    case: str, texts: Sequence[tuple[list[int], list[int], list[int]]], nodes: int, width: int
) -> dict[str, object]:
    """All texts with one drafter, each begun anew."""
    tokens = passes = drafted = accepted = 0
    common = 0.0
    for prompt, prediction, output in texts:
        drafter = make(case)
        result = replay(drafter, prompt, output, Plan(((drafter.name, nodes),), nodes, width), prediction=prediction)
        tokens += result.num_tokens
        passes += len(result.steps)
        drafted += sum(step[0] for step in result.steps)
        accepted += len(result.accepted_at)
        common += common_share(prediction, output, result) / len(texts)
    return {
        "drafter": case,
        "block_efficiency": tokens / passes,
        "drafted": drafted,
        "accepted": accepted,
        "share": common,
    }


if __name__ == "__main__":
    main()
