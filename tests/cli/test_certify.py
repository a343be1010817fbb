"""`outrider certify` from options to the page, with fewer enumerations than in use: `tests/bench` has those."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import refusal, run, write_model

from outrider.analysis.faults import FAULTS
from outrider.bench import certify
from outrider.bench.certify import Ledger
from outrider.engine.engine import Engine
from outrider.models.native.library import library

LINES = ["the cat and the dog and the cat and the dog", "one two one two one two", "red"]
SHORT = ("--max-tokens", "12", "--threads", "1", "--samples", "400", "--prefixes", "1")


@pytest.fixture
def prompts() -> str:
    Path("mine.txt").write_text("\n".join(LINES) + "\n")
    return "mine.txt"


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three faults, and the enumerations of short chains only."""
    every = certify.all_checks
    monkeypatch.setattr(
        certify, "all_checks", lambda *asked: [c for c in every(*asked) if max(c.widths, default=2) == 1][:9]
    )
    monkeypatch.setattr(certify, "FAULTS", FAULTS[:3])


def audit(model: str, prompts: str, *words: str, status: int = 0) -> Any:
    result = run("certify", "-m", model, "-p", prompts, *SHORT, "--json", *words)
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


def statuses(document: Any) -> dict[str, str]:
    return {claim["text"]: claim["status"] for claim in document["claims"]}


def test_equal_texts_are_certified_and_the_page_says_so_first(model: str, prompts: str) -> None:
    document = audit(model, prompts, "--temperature", "0.8")
    assert document["is_lossless"] is True
    assert statuses(document)["the enumeration sees every planted fault"] == "holds"
    assert list(document["faults"]) == [fault.name for fault in FAULTS[:3]]
    assert [run["seed"] for run in document["runs"]] == [0, 1, 2]
    assert len(document["settings"]["model_files"][0]["sha256"]) == 64
    page = Path("certificate/certificate.html").read_text()
    assert document == json.loads(Path("certificate/certificate.json").read_text())
    assert page.index(document["verdict"]) < page.index("What was checked") < page.index("What was not checked")
    for fault in document["faults"]:
        assert fault.replace("'", "&#39;") in page
    links = Links()
    links.feed(page)
    assert links.found == []  # it needs nothing from any network


class Links(HTMLParser):
    """Everything that a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href")]


@pytest.mark.parametrize("rule", ["token", "block", "traversal"])
def test_law_exact_rules_are_tested_by_sampling(model: str, prompts: str, rule: str) -> None:
    document = audit(model, prompts, "--rule", rule, "--temperature", "0.5", "-d", f"draft_model:model={model}")
    assert document["is_lossless"] is True
    assert statuses(document)["the first tokens have the target's law"] == "holds"
    (answer,) = document["law"].values()
    assert answer["samples"] == 400
    assert 0 < answer["smallest_difference"] < 0.5
    assert answer["accepted"] > 0


def test_an_approximate_rule_is_named_and_ends_with_status_1(model: str, prompts: str) -> None:
    document = audit(model, prompts, "--rule", "typical", "--temperature", "0.8", status=1)
    assert document["is_lossless"] is False
    assert "approximate" in document["verdict"]


def test_a_planted_fault_ends_with_status_1(model: str, prompts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trusting = next(fault for fault in FAULTS if fault.name == "the draft is trusted")
    monkeypatch.setattr(Engine, "steps", trusting.steps)
    document = audit(model, prompts, "--temperature", "0.8", status=1)
    assert statuses(document)["equal seeds give equal texts with speculation on and off"] == "fails"
    assert any(run["divergence"] for run in document["runs"])


def test_an_interrupted_audit_goes_on_where_it_stopped(
    model: str, prompts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = Ledger.keep

    def interrupted(self: Ledger, kind: str, name: str, answer: Any) -> None:
        if kind == "logits":
            raise KeyboardInterrupt
        keep(self, kind, name, answer)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "keep", interrupted)
        result = run("certify", "-m", model, "-p", prompts, *SHORT)
    assert result.exit_code == 130
    assert "the same command goes on from there" in result.stderr
    stored = json.loads(Path("certificate/certificate.json").read_text())
    assert (stored["is_complete"], stored["is_lossless"]) == (False, None)
    kinds: list[str] = []
    monkeypatch.setattr(Ledger, "keep", lambda self, kind, *rest: (kinds.append(kind), keep(self, kind, *rest))[1])
    document = audit(model, prompts)
    assert set(kinds) == {"logits"}
    assert document["is_complete"]
    assert document["runs"] == stored["runs"]


def test_other_settings_need_another_folder(model: str, prompts: str) -> None:
    audit(model, prompts)
    said = refusal("certify", "-m", model, "-p", prompts, *SHORT, "--seed", "5")
    assert "give --out another folder" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--prompts is missing"),
        (("-p", "none.txt"), "none.txt"),
        (("-p", "mine.txt", "--rule", "best"), "--rule is 'best'"),
        (("-p", "mine.txt", "--rule", "block", "--tree", "2x4"), "judges chains"),
        (("-p", "mine.txt", "-d", "none"), "nothing to certify"),
        (("-p", "mine.txt", "-d", "prediction"), "nothing to certify"),
        (("-p", "mine.txt", "--samples", "5"), "--samples is 5"),
        (("-p", "mine.txt", "--prefixes", "0"), "--prefixes is 0"),
        (("-p", "mine.txt", "--power", "1"), "--power is 1"),
        (("-p", "mine.txt", "--temperature", "-1"), "temperature is -1"),
    ],
)
def test_bad_input_is_one_sentence(model: str, prompts: str, words: tuple[str, ...], said: str) -> None:
    assert said in refusal("certify", "-m", model, *words)


@pytest.mark.skipif(library() is None, reason="the native library was not built for this machine")
def test_weights_of_fewer_bits_are_named_and_need_another_folder(prompts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They give another text, so they may not go on with a certificate, and a reviewer must see them."""
    monkeypatch.setenv("OUTRIDER_HOME", str(Path("home").resolve()))
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    model = str(write_model(Path("quantised"), **sizes, intermediate_size=96))
    document = audit(model, prompts, "--quantize", "int8", "--temperature", "0")
    assert document["settings"]["quantised"]["bits"] == "int8"
    said = refusal("certify", "-m", model, "-p", prompts, *SHORT, "--temperature", "0")
    assert "give --out another folder" in said
