"""The page end to end in headless Chromium, with a real server; they are skipped where there is no browser."""

import json
import re
import time

import pytest
from page_helpers import CHROMIUM, serving

from outrider.models.loading import list_models

pytest.importorskip("playwright.sync_api", reason="needs playwright, which the extra dev brings")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs the command chromium; on Debian: apt-get install chromium"
)


# -- theory ------------------------------------------------------------------------------------------------------------


def test_the_reference_values_appear(watch):
    page = watch()
    page.open()
    numbers = page.numbers("theory")
    assert [numbers[name] for name in ("tokens", "speedup", "best_speedup", "best_length")] == [
        "3.36",
        "2.80",
        "3.09",
        "8",
    ]


COST = {"speedup", "best_length", "best_speedup", "speedup_if_all", "break_even", "largest_batch"}
DEPEND = {
    "alpha": (0.5, {"tokens", "speedup", "best_length", "best_speedup", "all_accepted", "largest_batch"}),
    "gamma": (9, {"tokens", "speedup", "tokens_if_all", "speedup_if_all", "all_accepted"}),
    "c": (0.3, COST),
    "ridge": (6, COST - {"break_even"} | {"free_width"}),
    "batch": (9, COST - {"largest_batch"}),
}


def test_every_slider_moves_every_number_that_depends_on_it_and_the_curves(watch):
    page = watch()
    page.open("?view=theory&ridge=12&batch=2")
    marks = page.page.locator("#theory figure[data-plot=lengths] svg path[aria-roledescription=point]")
    marks.first.wait_for()
    for slider, (value, depending) in DEPEND.items():
        before, curve = page.numbers("theory"), page.rows("theory", "lengths")
        usual = page.page.locator(f"#theory [name={slider}]").input_value()
        drawn = marks.evaluate_all("marks => marks.map(m => m.getAttribute('aria-label'))")
        page.set("theory", slider, value)
        after = page.numbers("theory")
        assert {name for name in before if before[name] != after[name]} == depending, slider
        assert page.rows("theory", "lengths") != curve
        assert f"{slider}={value}" in page.page.url
        page.page.wait_for_function(
            """drawn => JSON.stringify([...document.querySelectorAll(
            "#theory figure[data-plot=lengths] svg path[aria-roledescription=point]")]
            .map(m => m.getAttribute("aria-label"))) !== JSON.stringify(drawn)""",
            arg=drawn,
        )
        page.set("theory", slider, usual)
        assert page.numbers("theory") == before


# -- exactness ---------------------------------------------------------------------------------------------------------


def outside(rows):
    """Tokens whose target's probability is not within the error of what was emitted."""
    target = {row["token"]: float(row["probability"]) for row in rows if row["kind"] == "target"}
    emitted = [row for row in rows if row["kind"] == "emitted"]
    assert len(emitted) == len(target) == 8
    return [row["token"] for row in emitted if not float(row["low"]) <= target[row["token"]] <= float(row["high"])]


@pytest.mark.parametrize("rule", ["match", "token", "block", "traversal"])
def test_the_bars_match_within_their_error_and_those_of_a_fault_do_not(watch, rule):
    page = watch()
    page.open(f"?view=exactness&rule={rule}&mismatch=0.6&rounds=2000")
    assert outside(page.rows("exactness", "laws")) == []
    assert page.page.text_content("#verdict").startswith("They match")
    bars = page.page.locator("#exactness figure[data-plot=laws] svg path[aria-roledescription=bar]")
    bars.first.wait_for()
    assert bars.count() == 24
    page.set("exactness", "fault", page.page.locator("#exactness [name=fault] option").nth(1).get_attribute("value"))
    assert outside(page.rows("exactness", "laws")) != []
    assert page.page.text_content("#verdict").startswith("They do not match")


def test_every_setting_of_the_simulation_moves_what_is_counted(watch):
    page = watch()
    page.open("?view=exactness")
    counted = {"acceptance", "tokens", "distance", "p_value"}
    formula = {"mismatch": {"acceptance_expected", "tokens_expected"}, "length": {"tokens_expected"}}
    for control, value in (("mismatch", 0.9), ("length", 2), ("rounds", 1500), ("seed", 5)):
        before = page.numbers("exactness")
        page.set("exactness", control, value)
        after = page.numbers("exactness")
        assert {name for name in before if before[name] != after[name]} == counted | formula.get(control, set())
        assert page.page.text_content("#verdict").startswith("They match")


# -- step by step ------------------------------------------------------------------------------------------------------


def test_a_round_forth_back_and_played(watch):
    page = watch()
    page.open("?view=steps")
    place = page.page.locator("#place")
    total = int(place.text_content().split()[-1])
    told = []
    for number in range(1, total + 1):
        assert place.text_content() == f"step {number} of {total}"
        told.append(page.page.text_content("#telling"))
        if number < total:
            page.page.get_by_role("button", name="Next").click()
    assert any("the coin shows" in words and "refused" in words for words in told)
    assert any("what is left of the target's law" in words for words in told)
    emitted = page.page.text_content("#emitted").split()
    assert told[-1].startswith(f"The round emits {' '.join(emitted)}:")
    assert page.page.locator("#steps .node.accept").count() == len(emitted) - 1
    assert page.page.get_by_role("button", name="Next").is_disabled()
    page.page.get_by_role("button", name="Back").click()
    assert page.page.text_content("#telling") == told[-2]
    assert page.page.text_content("#emitted") == "…"
    page.page.locator("#back").press("ArrowLeft")
    assert page.page.text_content("#telling") == told[-3]
    page.page.get_by_role("button", name="Play").click()
    page.page.wait_for_function(f"document.getElementById('place').textContent === 'step {total - 1} of {total}'")
    page.page.get_by_role("button", name="Pause").click()


def test_a_tree_in_steps(watch):
    page = watch()
    page.open("?view=steps&rule=token&widths=2,2")
    while page.page.locator("#next").is_enabled():
        page.page.locator("#next").click()
    assert page.page.locator("#steps .node:not(.unseen)").count() == 6
    page.page.locator("#steps figure[data-plot=step] svg path[aria-roledescription=bar]").first.wait_for()


# -- live --------------------------------------------------------------------------------------------------------------


def ended(page, seconds=30):
    page.page.wait_for_function("!document.getElementById('go').disabled", timeout=1000 * seconds)
    return page.page.text_content("#live-state")


def texts(page):
    return page.page.text_content("#text-on"), page.page.text_content("#text-off")


def test_the_live_view_streams_and_ends_and_a_saved_run_opens_again(watch, tmp_path):
    if not any(entry.name == "smollm2" and entry.pulled for entry in list_models()):
        pytest.skip("smollm2 is not on this machine; outrider models pull smollm2")
    with serving("smollm2") as (url, _):
        page = watch(url)
        page.open("?view=live&max_tokens=192")
        seen = page.page.evaluate_handle(
            """() => { const seen = new Set(), box = document.getElementById("text-on");
            new MutationObserver(() => seen.add(box.textContent.length)).observe(box, { childList: true });
            return seen; }"""
        )
        page.page.get_by_role("button", name="Run", exact=True).click()
        words = ended(page, 60)
        assert seen.evaluate("lengths => lengths.size") > 3  # it came in pieces
        assert re.match(r"Both texts are the same \d+ tokens: \d+ passes with drafts, \d+ without\.", words)
        tokens, with_drafts, without = map(int, re.findall(r"\d+", words))
        on, off = texts(page)
        assert on == off != ""
        assert tokens == without > with_drafts
        numbers = page.numbers("live")
        assert float(numbers["on_pass"]) == round(tokens / with_drafts, 2)
        assert page.page.locator("#text-on .drafted").count() >= tokens - with_drafts
        bars = page.page.locator("#live figure[data-plot=timeline] svg path[aria-roledescription=bar]")
        bars.first.wait_for(state="attached")
        assert bars.count() == 3 * (with_drafts + without)
        page.page.locator("#which").fill("3")
        assert page.page.locator("#live-tree .node").count() > 0
        with page.page.expect_download() as download:
            page.page.get_by_role("button", name="Save this run").click()
        download.value.save_as(tmp_path / "run.json")
    again = watch()
    again.open("?view=live")
    again.page.locator("#open").set_input_files(tmp_path / "run.json")
    again.page.wait_for_function("document.getElementById('live-state').textContent.startsWith('Both')")
    assert (again.page.text_content("#live-state"), texts(again), again.numbers("live")) == (words, (on, off), numbers)


def test_a_run_can_be_stopped_and_run_again(watch):
    page = watch()
    page.open("?view=live&max_tokens=512&prompt=this+is+the")
    page.page.evaluate(  # at the first token: the toy is too fast for a click from outside
        """() => { const box = document.getElementById("text-on");
        new MutationObserver(() => box.querySelector("span") && document.getElementById("stop").click())
        .observe(box, { childList: true }); }"""
    )
    page.page.get_by_role("button", name="Run", exact=True).click()
    assert ended(page) == "Stopped."
    page.open("?view=live")
    page.set("live", "max_tokens", 16)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:  # the server needs a moment to see that its reader has left
        page.page.get_by_role("button", name="Run", exact=True).click()
        if (words := ended(page)).startswith("Both"):
            break
    assert words.startswith("Both texts are the same 16 tokens")
    page.may_fail = True  # refusals of a run beside the first one are on the console


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_dead_server_is_announced(watch):
    with serving("toy") as (url, stop):
        page = watch(url)
        page.may_fail = True
        page.open()
        stop()
        page.page.locator("#theory [name=alpha]").fill("0.3")
        assert "The server does not answer" in page.alert()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?view=theory&alpha=3", "Alpha is '3'"),
        ("?view=exactness&rule=guess", "Rule is 'guess'"),
        ("?view=exactness&fault=nonsense", "Fault is 'nonsense'"),
        ("?view=steps&rule=block&widths=2,1", "The rule block judges chains"),
        ("?view=steps&number=-4", "Number is '-4'"),
    ],
)
def test_a_bad_value_in_the_address_is_told_in_the_page(watch, query, said):
    page = watch()
    page.may_fail = True
    page.open(query)
    assert page.alert().startswith(said)


def test_a_trace_of_another_version_is_told_in_the_page(watch, tmp_path):
    page = watch()
    page.may_fail = True
    page.open("?view=live")
    for document, said in (({"format": 99, "events": []}, "version 99"), ({"a": 1}, "no trace of the live view")):
        (tmp_path / "trace.json").write_text(json.dumps(document))
        page.page.locator("#open").set_input_files(tmp_path / "trace.json")
        page.page.wait_for_function(f"document.getElementById('alert').textContent.includes('{said}')")


# -- the frame ---------------------------------------------------------------------------------------------------------


def test_an_address_holds_the_view_and_its_settings(watch):
    page = watch()
    page.open("?view=exactness")
    page.set("exactness", "rule", "block")
    page.set("exactness", "mismatch", 0.8)
    other = watch()
    other.open(page.page.url.removeprefix(f"{page.base}/"))
    assert other.page.locator("#exactness [name=rule]").input_value() == "block"
    assert other.numbers("exactness") == page.numbers("exactness")


def test_the_longer_text_is_a_page_of_its_own_and_every_view_leads_to_it(watch):
    page = watch()
    page.open()
    links = page.page.locator("[role=tabpanel] .lead a")
    anchors = links.evaluate_all("links => links.map(link => link.hash.slice(1))")
    page.page.get_by_role("link", name="More about this").click()
    page.page.wait_for_url("**/concepts.html#*")
    assert page.page.url.endswith(anchors[0])
    assert len(set(anchors)) == 4
    assert set(anchors) <= set(page.page.locator("h2").evaluate_all("all => all.map(h => h.id)"))
    assert page.page.locator("figure[role=img] svg").count() == 4
    assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.page.get_by_role("link", name="Back to the explorer").click()
    page.settle()


def test_the_keyboard_is_enough_and_everything_has_a_name(watch):
    page = watch()
    page.open()
    page.page.get_by_role("tab", name="Theory").focus()
    for name in ("Exactness", "Step by step", "Live", "Theory"):
        page.page.keyboard.press("ArrowRight")
        assert page.page.evaluate("document.activeElement.textContent") == name
        page.settle()
        panel = page.page.get_by_role("tabpanel", name=name)
        assert panel.is_visible()
        lines = panel.get_by_role("form").or_(panel.get_by_role("group", name="Walk through the round")).all()
        told = [line.strip() for part in lines for line in part.aria_snapshot().splitlines()]
        controls = [line for line in told if re.match("- '?(slider|combobox|spinbutton|button)", line)]
        assert len(controls) >= 5
        assert all(re.match('''- '?[a-z]+ "''', line) for line in controls), controls
    page.page.get_by_role("slider", name="Acceptance rate", exact=True).press("ArrowLeft")
    page.settle()
    assert page.page.locator("#theory [name=alpha]").input_value() == "0.79"
    assert page.numbers("theory")["tokens"] != "3.36"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone_and_the_theme_can_be_changed(watch, scheme):
    page = watch(viewport={"width": 360, "height": 800}, color_scheme=scheme)
    page.open()
    for tab in page.page.get_by_role("tab").all():
        tab.click()
        page.settle()
        assert page.page.evaluate("document.documentElement.scrollWidth") <= 360
    ground = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.page.get_by_label("Theme").select_option("dark" if scheme == "light" else "light")
    assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") != ground
