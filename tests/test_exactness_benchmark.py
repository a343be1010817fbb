"""The exactness benchmark goes on where a killed run stopped."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "exactness.py"


@pytest.fixture
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("exactness", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def line(prompt: int) -> str:
    return json.dumps({"temperature": 0.0, "drafter": "off", "prompt": prompt, "tokens": [1], "stats": {}})


@pytest.mark.parametrize("cut", [1, 2, 3, 20, 0])
def test_an_incomplete_last_line_is_done_again(tmp_path: Path, benchmark: ModuleType, cut: int) -> None:
    path = tmp_path / "results.jsonl"
    whole = line(1)
    path.write_text(f"{line(0)}\n{whole[: len(whole) - cut]}")
    kept = [0] if cut else [0, 1]
    assert [key[1] for key in benchmark.read_results(path)] == kept
    with benchmark.append_to(path) as output:
        output.write(line(2) + "\n")
    assert [key[1] for key in benchmark.read_results(path)] == [*kept, 2]


def test_a_new_file_begins_without_an_empty_line(tmp_path: Path, benchmark: ModuleType) -> None:
    path = tmp_path / "results.jsonl"
    for prompt in range(2):
        with benchmark.append_to(path) as output:
            output.write(line(prompt) + "\n")
    assert path.read_text() == f"{line(0)}\n{line(1)}\n"
