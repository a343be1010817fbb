"""What Prometheus reads: the engine's own sums, always rising, understood by our own reader of servers."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from server_helpers import CHAT, MODEL, Live, make_engine, serving, wait_until

from outrider.bench.counters import parse_counters
from outrider.bench.remote import ON, Remote, Side
from outrider.bench.summary import summarise
from outrider.engine.stats import SpecStats
from outrider.workloads import PromptItem

ROOT = Path(__file__).parents[2]
PROMETHEUS = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"  # as it asks


def page(live: Live) -> dict[str, Any]:
    families = text_string_to_metric_families(live.http().get("/metrics").text)
    return {f"{s.name}{sorted(s.labels.items()) or ''}": s.value for family in families for s in family.samples}


def values(live: Live, name: str) -> float:
    found = re.search(rf"^outrider:{name}(?:{{[^}}]*}})? (\S+)$", live.http().get("/metrics").text, re.MULTILINE)
    assert found, name
    return float(found[1])


def ask(live: Live, **more: Any) -> Any:
    return live.http().post("/v1/chat/completions", json={"model": MODEL, "messages": CHAT, "max_tokens": 60} | more)


def test_the_page_holds_the_engine_s_sums() -> None:
    with serving() as live:
        for number in range(3):
            ask(live, n=2, seed=number, temperature=0.8)
        stats: SpecStats = live.server.worker.call(lambda engine: engine.stats).result(30)
        counters = parse_counters(live.http().get("/metrics").text)
        assert counters is not None
        assert counters["drafts"] == stats.drafted_steps > 0
        assert counters["drafted"] == stats.drafted
        assert counters["accepted"] == stats.accepted > 0
        assert [counters[f"at {n}"] for n in sorted(stats.accepts_at)] == [
            stats.accepts_at[n] for n in sorted(stats.accepts_at)
        ]
        assert values(live, "generation_tokens_total") == stats.emitted
        assert values(live, "spec_decode_block_efficiency") == pytest.approx(stats.block_efficiency)
        assert values(live, "spec_decode_coverage") == pytest.approx(stats.coverage)
        assert values(live, "spec_decode_zero_accept_fraction") == pytest.approx(stats.zero_accept_fraction)
        assert values(live, "spec_decode_acceptance_rate") == pytest.approx(stats.acceptance_rate)
        assert values(live, "time_to_first_token_seconds_count") == 6
        assert values(live, "num_requests_running") == values(live, "num_requests_waiting") == 0
        rejected = counters["drafted"] - counters["accepted"] - values(live, "spec_decode_num_discarded_tokens_total")
        assert rejected == stats.rejected
        by_place = [counters[f"at {n}"] for n in range(len(stats.accepts_at))]
        assert by_place == sorted(by_place, reverse=True)


def test_a_benchmark_of_the_server_gives_the_engine_s_own_rates() -> None:
    """What `outrider bench --endpoint` finds out from outside is what the engine counted inside."""
    items = [(text, PromptItem(text, "t", ({"role": "user", "content": text},))) for text in ("abcabc", "aaaa", "no")]
    with serving() as live:
        address = Side(live.url, {"ignore_eos": True})
        remote = Remote(address, replace(address, body={**address.body, "speculation": {"off": True}}), None)
        rounds = list(remote.rounds(items, [0.0], max_tokens=40, seed=1, raw=False, done=set()))
        remote.close()
        inside: SpecStats = live.server.worker.call(lambda engine: engine.stats).result(30)
        (row,) = summarise(rounds)
    runs = [r.runs[ON].counters or {} for r in rounds]
    total = {name: sum(run.get(name, 0) for run in runs) for name in {name for run in runs for name in run}}
    assert 0 < total["drafts"] <= total["passes"] < inside.steps  # a warm-up too
    assert row["block_efficiency"] == pytest.approx(120 / total["passes"])
    assert row["acceptance_rate"] == pytest.approx(total["accepted"] / (total["accepted"] + total["rejections"]))
    assert row["acceptance_rate_at"][0] == pytest.approx(total["at 0"] / total["tried at 0"])
    assert row["zero_accept_fraction"] == pytest.approx(total["zero accepts"] / total["drafts"])
    assert row["coverage"] == pytest.approx(total["drafts"] / total["passes"])
    assert row["wasted_row_fraction"] == pytest.approx(row["wasted_rows"] / (total["drafted"] + total["passes"]))
    assert row["drafted_off"] == 0


def test_counters_never_fall_whatever_happens(live: Live) -> None:
    seen: dict[str, float] = {}
    stream = live.client().chat.completions.create(  # type: ignore[call-overload]
        model=MODEL, messages=CHAT, max_tokens=300, stream=True, extra_body={"ignore_eos": True}
    )
    for step in range(6):
        next(stream)
        if step == 3:
            ask(live, temperature="hot")
        if step == 4:
            stream.close()
            wait_until(lambda: live.held() == (0, 0))
        now = {name: value for name, value in page(live).items() if "_total" in name or "_count" in name}
        assert all(now.get(name, -1.0) >= value for name, value in seen.items())
        seen = now
        if step == 4:
            break


def test_a_small_cache_that_preempts_lowers_no_counter() -> None:
    with serving(make_engine(cache_tokens=160)) as live:
        before: dict[str, float] = {}
        for number in range(3):
            answer = ask(live, n=3, seed=number, temperature=1.0, ignore_eos=True, max_tokens=80)
            assert answer.status_code == 200
            now = {name: value for name, value in page(live).items() if "_total" in name}
            assert all(now[name] >= value for name, value in before.items())
            before = now
        assert 0 <= values(live, "kv_cache_usage_perc") <= 1


def test_a_metric_that_fails_stops_no_answer(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object) -> None:
        raise ValueError("counters can only rise")

    monkeypatch.setattr(live.server.config.app.state.outrider.meters, "_whole", type("Broken", (), {"observe": fail}))  # type: ignore[union-attr]
    assert ask(live).status_code == 200


def test_there_is_no_shadow_where_none_runs_and_its_sums_where_one_does() -> None:
    with serving() as live:
        assert "shadow" not in live.http().get("/metrics").text
    with serving(make_engine(shadow=1.0)) as live:
        ask(live)
        wait_until(lambda: values(live, "shadow_checked_total") == 1)
        assert values(live, "shadow_diverged_total") == 0


def test_the_dashboard_asks_for_metrics_and_labels_that_exist() -> None:
    with serving(make_engine(shadow=1.0, cache_tokens=400)) as live:
        ask(live)
        page = live.http().get("/metrics", headers={"Accept": PROMETHEUS}).text
    samples = [s for family in text_string_to_metric_families(page) for s in family.samples]
    labels = {sample.name: set(sample.labels) for sample in samples}
    panels = json.loads((ROOT / "deploy" / "grafana.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(queries) > 20
    for query in queries:
        names = re.findall(r"outrider:[a-z0-9_]+", query)
        assert names
        for name in names:
            assert name in labels, query
            grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
            assert grouped <= labels[name], query
