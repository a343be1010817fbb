"""The explorer's endpoints and its page: numbers of `analysis`, refusals in one sentence, nothing from outside."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from fastapi.testclient import TestClient

from outrider.analysis.speed import best_length
from outrider.core.params import Rule
from outrider.explorer.app import create_app
from outrider.explorer.charts import CHARTS, specifications
from outrider.explorer.exactness import exactness, faults_of, make_toy
from outrider.explorer.live import Live, Run
from outrider.explorer.traces import read_trace

STATIC = files("outrider.explorer") / "static"
PAGE = (STATIC / "index.html").read_text(encoding="utf-8")
CHAIN = (1, 1, 1, 1)


@pytest.fixture(scope="module")
def client():
    return TestClient(create_app(Live("toy")), raise_server_exceptions=False)


def refusal(answer):
    assert answer.status_code == 400
    (message,) = answer.json().values()
    assert message.endswith(".")
    assert "\n" not in message
    return message


# -- theory ------------------------------------------------------------------------------------------------------------


def test_the_reference_values(client):
    numbers = client.get("/api/theory").json()["numbers"]
    shown = [round(numbers[name], 2) for name in ("tokens", "speedup", "best_length", "best_speedup")]
    assert shown == [3.36, 2.8, 8, 3.09]
    assert numbers["tokens_if_all"] == 5


@pytest.mark.parametrize("change", ["alpha=0.6", "gamma=7", "c=0.2", "ridge=6&batch=2", "batch=9&ridge=6"])
def test_every_slider_moves_the_numbers(client, change):
    before = client.get("/api/theory?ridge=6").json()["numbers"]
    assert client.get(f"/api/theory?{'' if 'ridge' in change else 'ridge=6&'}{change}").json()["numbers"] != before


def test_curves_hold_the_numbers(client):
    answer = client.get("/api/theory?alpha=0.7&gamma=3&c=0.1&ridge=8").json()
    (chosen,) = [row for row in answer["rows"]["lengths"] if row["length"] == 3]
    assert chosen["speedup"] == answer["numbers"]["speedup"]
    assert chosen["tokens"] == answer["numbers"]["tokens"]
    assert set(answer["rows"]) <= set(CHARTS)


def test_nothing_pays_is_said(client):
    answer = client.get("/api/theory?alpha=0.1&gamma=4&c=0.5").json()
    assert answer["numbers"]["best_length"] == 0
    assert "not to speculate" in answer["words"]
    assert best_length(0.1, 0.5) == (0, 1.0)


# -- exactness ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["match", "token", "block"])
def test_the_shipped_rules_match(client, rule):
    numbers = client.get(f"/api/exactness?rule={rule}").json()["numbers"]
    assert numbers["matches"]
    assert numbers["acceptance_low"] <= numbers["acceptance_expected"] <= numbers["acceptance_high"]
    assert numbers["tokens_low"] <= numbers["tokens_expected"] <= numbers["tokens_high"]


def test_traversal_matches_and_knows_no_formula_for_trees(client):
    numbers = client.get("/api/exactness?rule=traversal&widths=2,1&rounds=300").json()["numbers"]
    assert numbers["matches"]
    assert numbers["tokens_expected"] is None


def test_the_approximate_rule_is_called_so(client):
    answer = client.get("/api/exactness?rule=typical").json()
    assert answer["words"].startswith("typical is approximate. They do not match")
    assert answer["numbers"]["is_exact"] is False
    assert client.get("/api/exactness?rule=token").json()["numbers"]["is_exact"] is True


@pytest.mark.parametrize(
    ("rule", "fault"),
    [(rule, fault.name) for rule in (Rule.MATCH, Rule.TOKEN, Rule.BLOCK, Rule.TRAVERSAL) for fault in faults_of(rule)],
)
def test_every_planted_fault_is_seen(rule, fault):
    answer = exactness(make_toy(rule, 0.6, CHAIN, fault), 6000 if rule is not Rule.TRAVERSAL else 1200, 4)
    assert not answer["numbers"]["matches"]
    assert "do not match" in answer["words"]


def test_rows_are_those_of_the_plots(client):
    rows = client.get("/api/exactness?rounds=100").json()["rows"]
    assert len(rows["laws"]) == 3 * 8
    for row in rows["laws"]:
        if row["kind"] == "emitted":
            assert row["low"] <= row["probability"] <= row["high"]
    assert sum(row["measured"] for row in rows["accepted"]) == pytest.approx(1)


# -- one round ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["match", "token", "block", "traversal"])
@pytest.mark.parametrize("widths", ["1,1,1", "2,1"])
def test_a_round_in_steps(client, rule, widths):
    for number in range(4):
        answer = client.get(f"/api/round?rule={rule}&widths={widths}&number={number}")
        if rule == "block" and widths != "1,1,1":
            assert "chains" in refusal(answer)
            continue
        told = answer.json()
        assert [step["kind"] for step in told["steps"][: len(told["nodes"])]] == ["draft"] * len(told["nodes"])
        assert told["steps"][-1]["kind"] == "end"
        assert len(told["emitted"]) == len(told["accepted"]) + 1
        assert " ".join(told["emitted"]) in told["steps"][-1]["text"]
        (law,) = [step["law"] for step in told["steps"] if step["kind"] == "draw"] or [None]
        assert law is None or sum(row["probability"] for row in law) == pytest.approx(1)


# -- live --------------------------------------------------------------------------------------------------------------


def stream(client, **asked):
    answer = client.post("/api/live", json={"prompt": "this is the", "max_tokens": 60, "seed": 3} | asked)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [json.loads(part.removeprefix("data: ")) for part in answer.text.split("\n\n") if part]


@pytest.mark.parametrize("asked", [{}, {"width": 2, "length": 4}, {"temperature": 1.0}, {"drafter": "suffix"}])
def test_both_sides_write_the_same_and_the_draft_saves_passes(client, asked):
    events = stream(client, **asked)
    assert [events[0]["kind"], events[-1]["kind"]] == ["start", "end"]
    texts = {"on": "", "off": ""}
    for event in events[1:-1]:
        texts[event["side"]] += "".join(token["text"] for token in event["tokens"])
        accepted = sum(token["accepted"] for token in event["tokens"])
        assert sum(node["accepted"] for node in event["nodes"]) == accepted
        assert event["draft"] >= 0 <= event["other"]
    assert texts["on"] == texts["off"]
    assert events[-1]["equal"]
    assert events[-1]["num_tokens"] == 60
    assert events[-1]["passes"]["on"] < events[-1]["passes"]["off"] == 60


def test_a_saved_run_can_be_opened_again(client):
    events = stream(client)
    saved = json.dumps({"format": events[0]["format"], "events": events})
    assert client.post("/api/trace", content=saved).json()["events"] == events == read_trace(saved.encode())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no json", "no trace"),
        (b"[]", "no trace"),
        (b'{"format": 99, "events": []}', "version 99"),
        (b'{"format": 1, "events": [{"kind": "round"}]}', "damaged"),
        (b'{"format": 1, "events": 3}', "damaged"),
    ],
)
def test_what_is_no_trace_is_refused(client, content, said):
    assert said in refusal(client.post("/api/trace", content=content))


def test_one_run_at_a_time_and_a_reader_who_leaves_ends_it():
    live = Live("toy")
    events = live.run(Run("this is", max_tokens=1000))
    next(events)
    with pytest.raises(Exception, match="another run is under way"):
        live.run(Run("this is"))
    events.close()
    for _ in range(200):
        try:
            again = list(live.run(Run("this is", max_tokens=5)))
        except Exception as error:
            assert "another run" in str(error)  # noqa: PT017 - until the thread of the first one has ended
            __import__("time").sleep(0.02)
        else:
            break
    assert again[-1]["kind"] == "end"


def test_a_model_that_is_not_there_is_one_event():
    (event,) = list(Live("/nowhere/model.gguf").run(Run("hello")))
    assert event["kind"] == "error"
    assert "/nowhere/model.gguf" in event["message"]


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/api/theory?alpha=3", "alpha is '3'"),
        ("/api/theory?gamma=four", "gamma is 'four'"),
        ("/api/exactness?rule=foo", "rule is 'foo'"),
        ("/api/exactness?widths=9,9,9", "widths is '9,9,9'"),
        ("/api/exactness?rounds=0", "rounds is '0'"),
        ("/api/exactness?fault=nonsense", "fault is 'nonsense'"),
        ("/api/exactness?rule=match&fault=everything accepted", "the rule match does not have"),
        ("/api/round?number=-1", "number is '-1'"),
    ],
)
def test_bad_values_are_refused_in_one_sentence(client, path, said):
    assert said in refusal(client.get(path))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"prompt": ""}, "prompt is ''"),
        ({"prompt": "x", "drafter": "psychic"}, "psychic"),
        ({"prompt": "x", "length": 99}, "length is 99"),
        ({"prompt": "x", "colour": 1}, "colour is 1"),
    ],
)
def test_bad_runs_are_refused_in_one_sentence(client, body, said):
    assert said in refusal(client.post("/api/live", json=body))


# -- the page ----------------------------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """All elements with their attributes, and for each control whether a label stands around it."""

    def __init__(self):
        super().__init__()
        self.found, self._open = [], []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs), "label" in self._open))
        if tag not in ("meta", "link", "input", "br", "img"):
            self._open.append(tag)

    def handle_endtag(self, tag):
        while self._open.pop() != tag:
            pass


@pytest.fixture(scope="module")
def elements():
    parser = Elements()
    parser.feed(PAGE)
    return parser.found


def test_every_control_has_a_label(elements):
    controls = [one for one in elements if one[0] in ("input", "select", "textarea")]
    assert len(controls) > 20
    assert all(has_label for _, _, has_label in controls)


def test_tabs_and_panels_belong_together(elements):
    ids = [attributes["id"] for _, attributes, _ in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    tabs = [attributes for _, attributes, _ in elements if attributes.get("role") == "tab"]
    panels = [attributes for _, attributes, _ in elements if attributes.get("role") == "tabpanel"]
    assert [tab["aria-controls"] for tab in tabs] == [panel["id"] for panel in panels]
    assert [tab["id"] for tab in tabs] == [panel["aria-labelledby"] for panel in panels]
    assert ("html", {"lang": "en"}, False) in elements
    assert any(attributes.get("role") == "alert" for _, attributes, _ in elements)


def test_nothing_refers_outside(elements):
    for name in ("index.html", "style.css", *(p.name for p in STATIC.iterdir() if p.name.endswith(".js"))):
        text = (STATIC / name).read_text(encoding="utf-8")
        assert not re.search(r"https?://|//[a-z]+\.|@import|url\(", text), name
    for tag, attributes, _ in elements:
        for name in ("src", "href"):
            assert not attributes.get(name, "").startswith(("http", "//")), tag


def test_plots_numbers_and_settings_of_the_page_exist(client, elements):
    plots = {attributes["data-plot"] for _, attributes, _ in elements if "data-plot" in attributes}
    assert plots == set(CHARTS) == set(client.get("/api/charts").json())
    known = set(client.get("/api/theory").json()["numbers"]) | set(
        client.get("/api/exactness?rounds=50").json()["numbers"]
    )
    known |= {"speedup", "on_pass", "on_speed", "off_speed"}
    assert {attributes["data-number"] for _, attributes, _ in elements if "data-number" in attributes} <= known


def test_files_are_served_safely(client):
    for path, kind in [
        ("/", "text/html"),
        ("/page.js", "javascript"),
        ("/style.css", "text/css"),
        ("/vega.js", "java"),
    ]:
        answer = client.get(path)
        assert answer.status_code == 200
        assert kind in answer.headers["content-type"]
        assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert client.get("/nothing").status_code == 404


def test_the_page_weighs_less_than_1_5_megabytes(client):
    own = sum(len(path.read_bytes()) for path in STATIC.iterdir())
    assert own + len(client.get("/vega.js").content) < 1_500_000


def test_specifications_name_their_data():
    for name, specification in specifications().items():
        assert specification["data"] == {"name": name}


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to read JavaScript")
def test_the_scripts_are_javascript(tmp_path):
    for path in STATIC.iterdir():
        if path.name.endswith(".js"):
            copy = tmp_path / f"{path.name}.mjs"
            copy.write_bytes(path.read_bytes())
            subprocess.run(["node", "--check", str(copy)], check=True, timeout=60)
