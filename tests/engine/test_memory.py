"""What an engine says that it takes, what fits a budget, and what is refused at the start.

Written against vllm-project/vllm#9995, #8073, mlc-ai/mlc-llm#1827 and others, where a draft model's weights and cache
were left out of the sum and the first long request ran out of memory.
"""

import re

import pytest
from engine_helpers import PROMPT, VOCAB, decoder, engine, finish

from outrider.core.params import SamplingParams
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.suffix import SuffixDrafter
from outrider.engine import memory
from outrider.engine.config import EngineConfig, read_bytes
from outrider.errors import InvalidRequestError, MemoryBudgetError


def draft() -> DraftModel:
    return DraftModel(decoder(2, layers=1), VOCAB)


def parts(running: object) -> dict[str, memory.MemoryPart]:
    return {part.name: part for part in running.memory().parts}


def test_every_part_is_named_and_the_draft_model_s_are_among_them() -> None:
    running = engine(decoder(), [draft(), SuffixDrafter()])
    found = parts(running)
    assert set(found) == {
        "target weights",
        "draft_model weights",
        "working space",
        "target cache",
        "draft_model cache",
        "drafter state",
    }
    assert found["target weights"].held_bytes == decoder().weight_bytes
    assert found["draft_model weights"].held_bytes == decoder(2, layers=1).weight_bytes
    assert found["target cache"].held_bytes == 0
    running.submit(PROMPT, SamplingParams(max_tokens=10))
    for _ in range(3):
        running.step()
    found = parts(running)
    assert found["target cache"].held_bytes == running.cache.nbytes > 0
    assert found["draft_model cache"].held_bytes > 0
    report = running.memory()
    assert report.held_bytes == sum(part.held_bytes for part in report.parts)
    finish(running)


def test_a_target_that_drafts_for_itself_is_counted_once() -> None:
    found = parts(engine(decoder(), [DraftModel(decoder(), VOCAB)]))
    assert found["draft_model weights"].planned_bytes == 0
    assert found["draft_model cache"].planned_bytes == found["target cache"].planned_bytes > 0


def test_the_rows_that_fit_are_what_the_budget_leaves_for_both_caches() -> None:
    alone = engine(decoder(), memory="2MB", max_running=2, max_nodes=8)
    both = engine(decoder(), [draft()], memory="2MB", max_running=2, max_nodes=8)
    assert both.config.cache_tokens < alone.config.cache_tokens
    for running in (alone, both):
        assert 0.99 * 2e6 < running.memory().planned_bytes <= 2e6


def test_what_fits_is_kept_to_while_it_runs() -> None:
    running = engine(decoder(), [draft()], memory="1200KB", max_running=4, max_nodes=8, chunk_tokens=32)
    for number in range(12):
        running.submit([*PROMPT, number] * 8, SamplingParams(max_tokens=60, seed=number, temperature=1.0))
    most = {"target cache": 0, "draft_model cache": 0}

    def look() -> None:
        found = parts(running)
        for name in most:
            most[name] = max(most[name], found[name].held_bytes)

    finish(running, look)
    found = parts(running)
    assert all(0 < most[name] <= found[name].planned_bytes + 4 * 128 * 1024 for name in most)


def test_a_start_that_cannot_fit_is_refused_with_the_sums() -> None:
    # vllm-project/vllm#9995: the start passed, and the first long request failed.
    with pytest.raises(MemoryBudgetError) as caught:
        engine(decoder(), [draft()], memory="200KB")
    sums = str(caught.value)
    for name in ("target weights", "draft_model weights", "working space", "target cache", "draft_model cache"):
        assert re.search(rf"{name} [\d,]+ MB", sums)
    assert "cache tokens" in sums
    with pytest.raises(MemoryBudgetError, match="memory is 2 MB"):
        engine(decoder(), memory="2MB", cache_tokens=10**6)


def test_what_the_machine_has_is_the_bound_where_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "machine_bytes", lambda device: 3_000_000)
    running = engine(decoder(), max_running=2, max_nodes=8)
    assert running.memory().budget_bytes == 3_000_000 + decoder().weight_bytes
    monkeypatch.setattr(memory, "machine_bytes", lambda device: 10_000)
    with pytest.raises(MemoryBudgetError, match="what the machine has"):
        engine(decoder())
    monkeypatch.setattr(memory, "machine_bytes", lambda device: None)
    assert engine(decoder()).config.cache_tokens is None


def test_this_machine_tells_what_it_has() -> None:
    found = memory.machine_bytes()
    assert found is None or found > 1 << 20


@pytest.mark.parametrize(
    ("text", "count"),
    [("4GB", 4 * 10**9), ("512MiB", 2**29), ("1.5 GiB", 3 * 2**29), ("100", 100), (7, 7), ("2kb", 2000), ("3G", None)],
)
def test_sizes_are_read(text: object, count: int | None) -> None:
    if count is None:
        with pytest.raises(InvalidRequestError, match="memory is '3G'"):
            EngineConfig(memory=text)
    else:
        assert read_bytes("memory", text) == count
        assert EngineConfig(memory=text).memory == count


@pytest.mark.parametrize("value", ["much", "-1GB", "", -5, 0, True, 1.5, "GB"])
def test_what_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequestError, match="memory is"):
        EngineConfig(memory=value)
