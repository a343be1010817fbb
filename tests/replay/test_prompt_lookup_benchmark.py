"""The rule that the benchmark compares with is transformers' own."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from replay_helpers import as_records, live, prompts, target

from outrider.core.params import SamplingParams
from outrider.drafters.ngram import NgramDrafter

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "prompt_lookup.py"
STOPS = frozenset({0})


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prompt_lookup", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_rule_is_that_of_transformers(benchmark: ModuleType) -> None:
    from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

    generator = np.random.default_rng(3)
    theirs = PromptLookupCandidateGenerator(torch.tensor([0]), num_output_tokens=5, max_length=10_000)
    found = 0
    for _ in range(400):
        tokens = generator.integers(0, generator.integers(2, 12), generator.integers(1, 30)).tolist()
        candidates, _ = theirs.get_candidates(torch.tensor([tokens]))
        expected = candidates[0, len(tokens) :].tolist()
        assert benchmark.lookup(tokens, 5, stops=STOPS) == expected
        found += bool(expected)
    assert 100 < found < 400


def test_the_drafter_follows_the_rule(benchmark: ModuleType) -> None:
    params = SamplingParams(max_tokens=40, temperature=0.6, seed=2)
    engine, requests = live(target("table"), prompts(4), params, ends=(5,))
    seen = []

    class Checked(benchmark.LookupDrafter):  # type: ignore[name-defined,misc]
        def _propose(self, context):
            proposal = super()._propose(context)
            expected = benchmark.lookup(context.tokens, context.plan.max_depth, stops=context.stop_token_ids)
            assert proposal.tokens.tolist() == expected
            seen.append(len(expected))
            return proposal

    records = as_records(engine, requests)
    tasks = benchmark.play(records, Checked(), 6)
    assert list(tasks) == ["even", "odd", "all"]
    assert len(seen) >= tasks["all"].stats.steps > 40
    assert tasks["all"].stats.drafted == sum(seen)  # a failed check would have lost the turn
    assert benchmark.play(records, NgramDrafter(), 6)["all"].stats.emitted == tasks["all"].stats.emitted
