"""The load benchmark asks at the times it says, compares by turns, and reads streams as they are defined."""

import importlib.util
import itertools
import json
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest

from fake_server import FakeServer, serving

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "load.py"
BODIES = [{}, {"speculation": "off"}]


@pytest.fixture(scope="module")
def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("load_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def options(server: FakeServer, **changes: float) -> Namespace:
    given = {"endpoint": server.url, "key": "none", "model": None, "slo_first": 60.0, "slo_token": 60.0}
    return Namespace(**given | changes)


def test_on_and_off_are_asked_by_turns_in_an_order_that_changes(load: ModuleType) -> None:
    with serving() as server:
        rounds = [load.poisson(1000.0, 2, ["a"], 12, seed) for seed in range(3)]
        results = load.by_turns(options(server), rounds, BODIES)
        order = ["speculation" in body for body in server.seen]
        runs = [body["messages"][0]["content"].split()[1] for body in server.seen]
    assert order == [False, False, True, True, True, True, False, False, False, False, True, True]
    assert len(set(runs)) == 6, "no run finds the prompts of another in the server's cache"
    for result in results:
        assert (result["requests"], result["statuses"], result["goodput_share"]) == (6, {"ok": 6}, 1.0)


def test_tokens_come_from_usage_and_the_first_chunk_is_the_first_with_text(load: ModuleType) -> None:
    with serving() as server:
        server.deltas = [{"role": "assistant", "content": ""}, *[{"content": "abcd"}] * 3]
        server.pause = 0.02
        (result,) = load.by_turns(options(server), [load.poisson(1000.0, 3, ["a"], 12, 0)], [{}])
    assert result["first_token_seconds"]["median"] >= 0.02, "the empty chunk before is no text"
    assert result["seconds_between_chunks"]["median"] >= 0.02
    assert result["tokens_per_second"] == pytest.approx(36 / result["seconds"], rel=0.1)


def test_who_is_too_slow_or_refused_is_no_goodput(load: ModuleType) -> None:
    with serving() as server:
        server.pause = 0.02
        (slow,) = load.by_turns(options(server, slo_first=0.0), [load.poisson(1000.0, 2, ["a"], 12, 0)], [{}])
        server.fault = "refused"
        (refused,) = load.by_turns(options(server), [load.poisson(1000.0, 2, ["a"], 12, 0)], [{}])
    assert (slow["statuses"], slow["goodput_share"]) == ({"ok": 2}, 0.0)
    assert (refused["statuses"], refused["goodput_share"], refused["first_token_seconds"]) == ({"400": 2}, 0.0, None)


def test_poisson_arrivals_are_independent_with_the_mean_that_was_asked_for(load: ModuleType) -> None:
    arrivals = load.poisson(4.0, 4000, ["a", "b"], 12, 1)
    gaps = [b.seconds - a.seconds for a, b in itertools.pairwise(arrivals)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.25, rel=0.08)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert spread == pytest.approx(mean, rel=0.1), "as long as the mean, which evenly spaced ones are not"
    assert [arrival.prompt for arrival in arrivals[:4]] == ["a", "b", "a", "b"]
    assert load.poisson(4.0, 9, ["a"], 12, 1) != load.poisson(4.0, 9, ["a"], 12, 2)


def test_a_trace_gives_times_and_lengths(load: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = ["2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:48.6805900,5000,9", "2023-11-16 18:15:56.68,0,0"]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]), encoding="utf-8-sig")
    arrivals = load.azure(path, 9, 2.0, 1000, 20)
    assert [round(arrival.seconds, 3) for arrival in arrivals] == [0.0, 1.0, 5.0]
    assert [len(arrival.prompt.split()) for arrival in arrivals] == [374, 1000, 1]
    assert [arrival.max_tokens for arrival in arrivals] == [20, 9, 1]
    assert json.dumps([arrival.prompt for arrival in arrivals]) == json.dumps(
        [arrival.prompt for arrival in load.azure(path, 9, 1.0, 1000, 20)]
    )
