"""`outrider simulate`, `plan` and `explore` on the command line."""

import json
import socket
from pathlib import Path

import pytest
from cli_helpers import refusal, run

from outrider.bench.measured import read_measured
from outrider.errors import InvalidRequestError

ROW = {
    "kind": "ngram length 4",
    "task": "all",
    "temperature": 0.0,
    "speedup": 1.4,
    "acceptance_rate_at": [0.7, 0.6],
    "drafted": 100,
    "draft_seconds_on": 0.1,
    "seconds_per_token_off": 0.02,
    "coverage": 0.5,
}
PASSES = [{"context": 256, "width": width, "seconds": 0.02 + 0.001 * width} for width in (1, 4, 8)]


def document(*rows, passes=PASSES):
    return {"summary": list(rows), "provenance": {"passes": passes}, "format": 1, "rounds": []}


def test_simulate_shows_every_rule_beside_its_formula():
    result = run("simulate", "--rounds", "300")
    assert result.exit_code == 0, result.stderr
    rows = {line.split()[0]: line for line in result.stdout.splitlines()[1:]}
    assert list(rows) == ["match", "token", "block", "traversal", "typical"]
    assert rows["token"].endswith("yes")
    assert rows["typical"].endswith("no, approximate")


def test_simulate_as_json_and_as_a_tree():
    result = run("simulate", "--rule", "token", "--widths", "2,1", "--rounds", "100", "--json")
    (row,) = json.loads(result.stdout)["rules"]
    assert row["draw"] == "top_plus_sample"
    assert sum(row["accepted_lengths"]) == row["rounds"] == 100


@pytest.mark.parametrize("ending", ["html", "svg"])
def test_plots_are_files_that_stand_alone(ending, tmp_path: Path):
    path = tmp_path / f"plot.{ending}"
    assert run("plan", "--acceptance", "0.8", "--plot", str(path)).exit_code == 0
    assert ("<svg" if ending == "svg" else "vegaEmbed") in path.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("simulate", "--rule", "tokens"), "--rule is 'tokens'"),
        (("simulate", "--draw", "dice"), "--draw is 'dice'"),
        (("simulate", "--rule", "block", "--widths", "2,1"), "judges chains"),
        (("simulate", "--mismatch", "3"), "mismatch is 3.0"),
        (("plan",), "nothing was measured"),
        (("plan", "--acceptance", "often"), "--acceptance is 'often'"),
        (("plan", "--acceptance", "1.5"), "acceptance of ngram is [1.5]"),
        (("plan", "--acceptance", "0.5", "--drafter", "psychic"), "psychic"),
        (("plan", "--acceptance", "0.5", "--cost", "cheap"), "cost is 'cheap'"),
        (("plan", "--acceptance", "0.5", "--plot", "plot.gif"), "--plot is 'plot.gif'"),
        (("plan", "nowhere"), "cannot be read"),
        (("plan", "nowhere", "--acceptance", "0.5"), "leave one out"),
    ],
)
def test_mistakes_are_one_sentence(words, said):
    assert said in refusal(*words)


def test_plan_gives_the_reference_advice():
    told = json.loads(run("plan", "--acceptance", "0.8", "--draft-cost", "0.05", "--json").stdout)
    assert told["speculate"]
    assert told["choice"]["length"] == 8
    assert round(told["choice"]["speedup"], 2) == 3.09
    assert told["flags"]["TGI"] == "--speculate 8"


def test_plan_may_say_no():
    result = run("plan", "--acceptance", "0.3", "--draft-cost", "0.5")
    assert result.stdout.startswith("do not speculate")


def test_plan_reads_a_recorded_run(tmp_path: Path):
    (tmp_path / "run.json").write_text(json.dumps(document(ROW)))
    result = run("plan", str(tmp_path), "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    (candidate,) = told["candidates"]
    assert candidate == {"name": "ngram length 4", "rates": [0.7, 0.6], "c": 0.05, "coverage": 0.5}
    assert told["measured_speedups"] == {"ngram length 4": 1.4}
    assert not told["cost_is_flat"]
    assert told["context"] == 256
    assert '"ngram"' in told["flags"]["vLLM"]


def test_what_a_run_does_not_tell_is_left_out_by_name():
    measured = read_measured(document(ROW, ROW | {"kind": "suffix", "drafted": 0, "acceptance_rate_at": []}, passes=[]))
    assert measured.left_out == ("suffix",)
    assert measured.cost is None
    with pytest.raises(InvalidRequestError, match="tells no acceptance"):
        read_measured(document(ROW | {"draft_seconds_on": None}))


def test_the_row_over_all_tasks_counts():
    measured = read_measured(document(ROW, ROW | {"task": "code", "coverage": 0.9}))
    assert [candidate.coverage for candidate in measured.candidates] == [0.5]


def test_explore_refuses_an_address_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run("explore", "--port", str(port), "--no-browser")
    assert result.exit_code == 1
    assert f"127.0.0.1:{port} cannot be used" in result.stderr


def test_explore_names_what_is_not_installed(monkeypatch):
    monkeypatch.setattr("outrider.cli.exploring.find_spec", lambda name: None)
    result = run("explore", "--no-browser")
    assert "pip install 'outrider[explore]'" in result.stderr
