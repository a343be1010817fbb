import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import vl_convert
from cli_helpers import refusal, run

from fake_server import FakeServer, serving
from outrider.bench.journal import Journal, read_document
from outrider.bench.table import sentences

LINES = ["the cat and the dog and the cat and the dog", "one two one two one two", "red"]
SHORT = ("--max-tokens", "12", "--ignore-eos", "--threads", "1")


@pytest.fixture
def prompts() -> str:
    return write("mine.txt", *LINES)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving() as running:
        yield running


def write(name: str, *records: Any) -> str:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return name


def bench(model: str, prompts: str, *words: str) -> Any:
    """Run a benchmark that must go well; gives its JSON."""
    result = run("bench", "-m", model, "-p", prompts, *SHORT, "--json", *words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_run_leaves_every_pair_and_what_it_was_measured_on(model: str, prompts: str) -> None:
    words = ("-d", "ngram", "-d", "ngram:min=1", "--length", "2,4", "--temperature", "0,0.7", "--limit", "2")
    shown = bench(model, prompts, *words)
    document, rounds = read_document(Path("bench-run"))
    assert document["is_complete"]
    assert [r.key for r in rounds] == [(name, t) for t in (0.0, 0.7) for name in "12"]
    arms = [f"{name} length {length}" for name in ("ngram", "ngram:min=1") for length in (2, 4)]
    assert all(list(r.runs) == ["off", *arms] for r in rounds)
    assert [(row["kind"], row["temperature"]) for row in shown["summary"]] == [(a, t) for t in (0.0, 0.7) for a in arms]
    assert {row["num_equal"] for row in shown["summary"]} == {2}
    provenance, settings = document["provenance"], document["settings"]
    assert provenance["machine"]["cpu"]
    assert [cost["width"] for cost in provenance["passes"]] == [1, 2, 4, 8, 16]
    assert re.fullmatch(r"[0-9a-f]{64}", settings["model_files"][0]["sha256"])
    assert re.fullmatch(r"[0-9a-f]{64}", settings["prompts"][0]["sha256"])
    assert (settings["threads"], settings["max_tokens"], settings["seed"]) == (1, 12, 0)
    assert provenance["versions"]["torch"] == settings["torch"]


def test_the_table_has_a_line_for_each_task_and_one_for_all(model: str) -> None:
    records = [{"prompt": LINES[n], "task": task, "id": n} for n, task in enumerate(("chat", "code", "chat"))]
    result = run("bench", "-m", model, "-p", write("mine.jsonl", *records), *SHORT)
    lines = [line.split() for line in result.stdout.splitlines() if line.strip().startswith("ngram")]
    assert [line[1:3] for line in lines[:3]] == [["all", "3"], ["chat", "2"], ["code", "1"]]
    assert [line[1] for line in lines[3:6]] == ["all", "chat", "code"]
    assert all(float(line[3]) > 0 for line in lines[:3])
    assert all(float(line[2]) >= 1 for line in lines[3:6])
    assert [line[1] for line in lines[6:]] == ["all", "chat", "code"]
    document, _ = read_document(Path("bench-run"))
    for line, row in zip(lines[6:], document["summary"], strict=True):
        millis = [1e3 * row[f"seconds_per_token_{side}"] for side in ("on", "off")]
        spent = [row[f"{part}_seconds_on"] for part in ("draft", "verify", "other")]
        peaks = [row[f"peak_bytes_{side}"] / 1e6 for side in ("on", "off")]
        figures = [*millis, *spent, row["first_token_seconds_off"], *peaks, *row["acceptance_rate_at"]]
        assert [float(word) for word in line[2:] if word != "-"] == pytest.approx(figures, abs=0.51)


def test_trees_are_measured_and_named(model: str, prompts: str) -> None:
    shown = bench(model, prompts, "-d", "recycling", "--length", "4", "--tree", "3x8,2x4", "--limit", "1")
    assert [row["kind"] for row in shown["summary"]] == [f"recycling length 4 tree {tree}" for tree in ("3x8", "2x4")]
    assert [arm["tree"] for arm in shown["settings"]["drafters"]] == ["3x8", "2x4"]
    assert all(row["num_equal"] == 1 and row["drafted"] > 0 for row in shown["summary"])


def test_an_interrupted_run_goes_on_where_it_stopped(model: str, prompts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    add = Journal.add_round
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add_round", lambda self, r: _interrupt() if len(self.rounds) == 2 else add(self, r))
        result = run("bench", "-m", model, "-p", prompts, *SHORT)
    assert result.exit_code == 130
    assert "2 rounds are kept in bench-run; the same command goes on from there" in result.stderr
    stored, first = read_document(Path("bench-run"))
    assert (stored["is_complete"], len(first)) == (False, 2)
    assert any("not finished" in text for text in sentences(stored))
    bench(model, prompts)
    stored, rounds = read_document(Path("bench-run"))
    assert (stored["is_complete"], [r.prompt for r in rounds]) == (True, ["1", "2", "3"])
    assert rounds[:2] == first


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_a_finished_run_is_shown_again_and_not_measured(
    model: str, prompts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bench(model, prompts)
    monkeypatch.setattr("outrider.bench.local.measure", lambda *_a, **_o: pytest.fail("measured again"))
    assert bench(model, prompts) == first
    assert json.loads(run("bench", "report", "bench-run", "--json").stdout) == first
    assert json.loads(run("bench", "report", "bench-run/run.json", "--json").stdout) == first
    result = run("bench", "-m", model, "-p", prompts, *SHORT)
    assert run("bench", "report", "bench-run").stdout == result.stdout


def test_other_settings_do_not_mix(model: str, prompts: str) -> None:
    first = bench(model, prompts)
    words = ("bench", "-m", model, "-p", prompts)
    assert "bench-run holds a run with max_tokens 12, but now it is 9" in refusal(*words, *SHORT, "--max-tokens", "9")
    assert "with temperature [0.0]" in refusal(*words, *SHORT, "--temperature", "0,1")
    assert "with drafters" in refusal(*words, *SHORT, "--length", "3")
    Path(prompts).write_text("another\n")
    assert "with prompts" in refusal(*words, *SHORT)
    assert json.loads(run("bench", "report", "bench-run", "--json").stdout) == first


def test_many_at_once_name_the_crossover(model: str, prompts: str) -> None:
    shown = bench(model, prompts, "--concurrency", "1,2")
    assert {(load["kind"], load["concurrency"]) for load in shown["loads"]} == {
        (kind, level) for kind in ("off", "ngram") for level in (1, 2)
    }
    assert [point["concurrency"] for point in shown["curve"]] == [1, 2]
    assert all(point["throughput_ratio"] > 0 for point in shown["curve"])
    shown = run("bench", "report", "bench-run")
    assert re.search(r"ngram at temperature 0 (pays|stops|does not|has no)", shown.stderr)
    assert "at once" in shown.stdout
    sentence = refusal("bench", "-m", model, "-p", prompts, *SHORT, "--concurrency", "1,9", "--out", "other")
    assert "--concurrency 9 needs as many prompts; there are 3" in sentence


def test_prompts_longer_than_the_context_are_left_out_and_said(model: str) -> None:
    shown = bench(model, write("mine.txt", *LINES, "word " * 60))
    assert shown["skipped"] == {"4": shown["skipped"]["4"]}
    assert "do not fit the context of 256" in shown["skipped"]["4"]
    assert "prompt 4 was left out" in run("bench", "report", "bench-run").stderr
    long = write("long.txt", "word " * 60)
    assert "no prompt fits the context" in refusal("bench", "-m", model, "-p", long, *SHORT, "--out", "other")


def test_texts_to_be_changed_are_predictions_on_request(model: str) -> None:
    edit = {"task_id": "E/0", "instruction": "Sort it.", "input": "a = 1\n", "output": "a = 2"}
    words = ("-d", "prediction", "-d", "ngram")
    shown = bench(model, write("edits.jsonl", edit), *words, "--use-prediction")
    assert [row["task"] for row in shown["summary"]] == ["edit", "edit"]
    assert shown["settings"]["use_prediction"]
    sentence = refusal("bench", "-m", model, "-p", "edits.jsonl", *SHORT, *words)
    assert "add --use-prediction and prompts that have one" in sentence
    own = write("own.jsonl", {"prompt": "hi", "prediction": "hi there"}, {"prompt": "ho"})
    bench(model, own, "-d", "prediction", "--use-prediction", "--out", "own")
    long = write("long.jsonl", {"prompt": "hi", "prediction": "word " * 60}, {"prompt": "ho"})
    shown = bench(model, long, "-d", "prediction", "--use-prediction", "--out", "long")
    assert list(shown["skipped"]) == ["1"]


def test_several_files_keep_their_prompts_apart(model: str, prompts: str) -> None:
    other = write("other.jsonl", {"messages": [{"role": "user", "content": "hi"}]})
    bench(model, prompts, "-p", other, "--limit", "1")
    assert [r.prompt for r in read_document(Path("bench-run"))[1]] == ["mine.txt:1", "other.jsonl:1"]
    Path("sub").mkdir()
    bench(model, prompts, "-p", write("sub/mine.txt", "hi"), "--limit", "1", "--out", "c")
    assert [r.prompt for r in read_document(Path("c"))[1]] == ["mine.txt:1", "sub/mine.txt:1"]
    assert "leave raw out" in refusal("bench", "-m", model, "-p", other, *SHORT, "--raw", "--out", "b")


def test_the_page_needs_no_network_and_escapes_what_it_shows(model: str) -> None:
    name = "</script><b>x"
    run("bench", "-m", model, "-p", write("mine.jsonl", {"prompt": LINES[0], "id": name, "task": name}), *SHORT)
    result = run("bench", "report", "bench-run", "--html")
    page = Path("bench-run/report.html").read_text(encoding="utf-8")
    assert "page: bench-run/report.html" in result.stderr
    assert page.count('vegaEmbed("#plot-') == page.count('<div id="plot-') == 6
    assert name not in page
    markup = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert re.findall(r"<(?:script|link|img|iframe)|(?:src|href|url)\s*[=(]", markup) == []
    plots = [json.loads(text) for text in re.findall(r'vegaEmbed\("#plot-\d+", (.*), \{"actions": false\}\);', page)]
    assert len(plots) == 6
    for plot in plots:
        assert not _addresses(plot)
        assert vl_convert.vegalite_to_svg(plot).startswith("<svg")
    assert "speedup" in page


def _addresses(value: Any) -> list[str]:
    """What a plot would load."""
    if isinstance(value, dict):
        found = [str(value["url"])] if "url" in value else []
        return found + [address for part in value.values() for address in _addresses(part)]
    return [address for part in value for address in _addresses(part)] if isinstance(value, list) else []


@pytest.mark.parametrize(
    ("option", "missing", "packages"),
    [("--html", "vl_convert", "vl-convert-python"), ("--endpoint", "openai", "openai")],
)
def test_what_the_base_install_lacks_is_said_with_the_command(
    prompts: str, monkeypatch: pytest.MonkeyPatch, option: str, missing: str, packages: str
) -> None:
    words = {"--html": ("--html",), "--endpoint": ("--endpoint", "http://127.0.0.1:9", "--off-body", "{}")}[option]
    monkeypatch.setattr("outrider.cli.bench_job.find_spec", lambda name: None if name == missing else name)
    sentence = refusal("bench", "-p", prompts, *words)
    assert sentence == f'{option} needs {packages}; run: pip install "outrider[bench]".'


RECORDS: dict[str, tuple[list[Any], str]] = {
    "not JSON": ([{"prompt": "hi"}, "{oops"], "line 2 is not JSON"),
    "a missing field": ([{"prompt": "hi"}, {"text": "hi"}], "line 2 has no field 'prompt'"),
    "an unknown format": ([{"colour": "red"}], "line 1 has colour"),
    "an empty prompt": ([{"prompt": " "}], "line 1 has prompt=' '"),
    "nothing": ([""], "is empty"),
    "one id twice": ([{"prompt": "a", "id": 1}, {"prompt": "b", "id": 1}], "line 2 has the id '1'"),
}


@pytest.mark.parametrize("case", RECORDS)
def test_files_that_are_not_understood(model: str, case: str) -> None:
    records, words = RECORDS[case]
    assert words in refusal("bench", "-m", model, "-p", write("bad.jsonl", *records))
    assert not Path("bench-run").exists()


WORDS = {
    (): "--prompts is missing",
    ("-p", "missing.jsonl"): "missing.jsonl does not exist",
    ("-p", "mine.txt", "-p", "./mine.txt"): "give each file once",
    ("-p", "mine.txt", "-d", "ngrm"): "'ngrm' does not exist",
    ("-p", "mine.txt", "-d", "ngram", "-d", "ngram"): "'ngram' is to be measured twice",
    ("-p", "mine.txt", "-d", "draft_model:model=nowhere"): "'nowhere'",
    ("-p", "mine.txt", "--length", "4,0"): "--length is '4,0'",
    ("-p", "mine.txt", "--tree", "wide"): "tree is 'wide'; give width x nodes",
    ("-p", "mine.txt", "--tree", "8x4"): "tree is '8x4'",
    ("-p", "mine.txt", "--tree", "2x4", "--rule", "block"): "--rule block judges chains",
    ("-p", "mine.txt", "--rule", "typical"): "--rule is 'typical'; choose one of match, token, block, traversal",
    ("-p", "mine.txt", "--temperature", "hot"): "--temperature is 'hot'",
    ("-p", "mine.txt", "--temperature", "0,inf"): "--temperature is '0,inf'",
    ("-p", "mine.txt", "--concurrency", "x"): "--concurrency is 'x'",
    ("-p", "mine.txt", "--policy", "fixd"): "'fixd'",
    ("-p", "mine.txt", "--rule", "mach"): "--rule is 'mach'",
    ("-p", "mine.txt", "--max-tokens", "0"): "max_tokens is 0",
    ("-p", "mine.txt", "--limit", "0"): "limit is 0",
    ("-p", "mine.txt", "--task", "poems"): "no prompt of the task 'poems'",
    ("-p", "mine.txt", "--dtype", "int3"): "dtype is 'int3'",
    ("-p", "mine.txt", "--use-prediction"): "--use-prediction has no drafter that follows it",
    ("-p", "mine.txt", "--off-body", "{}"): "--off-body is for servers",
    ("-p", "mine.txt", "--on-body", "{}"): "--on-body is for servers",
    ("-p", "mine.txt", "--endpoint-off", "http://x"): "--endpoint-off is for servers",
    ("-p", "mine.txt", "--endpoint", "http://x"): "has no side without speculation",
    ("-p", "mine.txt", "--endpoint", "x", "--off-body", "{}"): "--endpoint is 'x'",
    ("-p", "mine.txt", "--endpoint", "http://x", "--off-body", "[1]"): "--off-body is '[1]'",
    ("-p", "mine.txt", "--endpoint", "http://x", "--off-body", "{}", "-d", "ngram"): "--drafter cannot be set",
    ("-p", "mine.txt", "--endpoint", "http://x", "--off-body", "{}", "--length", "4"): "--length cannot be set",
    ("-p", "mine.txt", "--endpoint", "http://x", "--off-body", "{}", "--concurrency", "4"): "--concurrency cannot be",
    ("-p", "mine.txt", "--endpoint", "http://x", "--off-body", "{}", "--tree", "2x4"): "--tree cannot be set",
    ("-p", "mine.txt", "--endpoint", "http://x", "--off-body", "{}", "--dtype", "float32"): "--dtype cannot be set",
    ("-p", "mine.txt", "--endpoint", "http://x", "--off-body", "{}", "--use-prediction"): "--use-prediction cannot be",
    ("--limit", "3", "report", "bench-run"): "--limit stands before report",
    ("report", "nowhere"): "nowhere cannot be read",
}


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_options_that_cannot_be_meant(prompts: str, words: tuple[str, ...]) -> None:
    assert WORDS[words] in refusal("bench", *words)
    assert not Path("bench-run").exists()


def test_an_output_folder_that_cannot_be_written(model: str, prompts: str) -> None:
    Path("file").touch()
    assert "--out file cannot be used" in refusal("bench", "-m", model, "-p", prompts, *SHORT, "--out", "file")


# -- servers ---------------------------------------------------------------------------------------------------------


def test_a_server_is_measured_with_its_own_counters(server: FakeServer, prompts: str) -> None:
    server.counters = {}
    words = ("bench", "-p", prompts, "--endpoint", server.url, "--off-body", '{"plain": true}', "--max-tokens", "12")
    shown = json.loads(run(*words, "--json").stdout)
    (row,) = shown["summary"]
    assert (row["kind"], row["num_prompts"], row["num_equal"]) == ("on", 3, 3)
    assert row["accepted_fraction"] == pytest.approx(8 / 12)
    assert shown["settings"]["model"] == "toy"
    assert sum(1 for body in server.seen if body.get("plain")) == 4
    assert run(*words).exit_code == 0
    assert len(server.seen) == 8
    assert "2.67" in run("bench", "report", "bench-run").stdout


def test_a_side_that_should_be_plain_and_drafts_is_said(server: FakeServer, prompts: str) -> None:
    server.counters = {}
    result = run("bench", "-p", prompts, "--endpoint", server.url, "--off-body", '{"no": 1}')
    assert "drafted 36 tokens in runs that should be plain" in result.stderr


def _die(server: FakeServer) -> None:
    server.fault, server.faulty_from = "cut", 6


def _nonsense(server: FakeServer) -> None:
    server.fault, server.faulty_from = "json", 6


@pytest.mark.parametrize(("spoil", "words"), [(_die, "broke off"), (_nonsense, "answers nonsense")])
def test_what_was_measured_before_a_server_fails_is_kept(
    server: FakeServer, prompts: str, spoil: Callable[[FakeServer], None], words: str
) -> None:
    spoil(server)
    command = ("bench", "-p", prompts, "--endpoint", server.url, "--off-body", '{"plain": true}')
    result = run(*command)
    assert (result.exit_code, result.stdout) == (1, "")
    kept, error = result.stderr.splitlines()
    assert kept == "2 rounds are kept in bench-run; the same command goes on from there."
    assert error.startswith("error: ")
    assert words in error
    server.fault = ""
    assert run(*command).exit_code == 0
    assert len(read_document(Path("bench-run"))[1]) == 3


def test_a_server_that_is_down_is_one_sentence(prompts: str) -> None:
    sentence = refusal("bench", "-p", prompts, "--endpoint", "http://127.0.0.1:9", "--off-body", "{}")
    assert "http://127.0.0.1:9/v1 cannot be reached" in sentence
    assert not Path("bench-run").exists()
