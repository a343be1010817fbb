"""The parts of an audit on their own: each is right on exact designs, and sees what is wrong."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from outrider.analysis.faults import FAULTS, HONEST
from outrider.bench.enumeration import ROUNDING, all_checks, cheapest_first, run_check
from outrider.bench.joint_law import chi_square, exact_cells, sample_texts, smallest_difference, tail
from outrider.bench.paths import compare_paths, logit_differences
from outrider.bench.verdict import claims, verdict
from outrider.core.params import Draw, Rule, SamplingParams, Speculation
from outrider.core.types import Proposal
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.scripted import ScriptedDrafter
from outrider.engine.config import EngineConfig
from outrider.engine.engine import Engine
from outrider.models.toy import TableTarget, random_decoder
from outrider.policies.fixed import Fixed

VOCAB = 12
TARGET = TableTarget(VOCAB, order=2, seed=3, scale=1.0)
DRAFT = TableTarget(VOCAB, order=2, seed=4, scale=1.0)
PROMPT = (0, 1, 2, 3)
PARAMS = SamplingParams(temperature=1.0, max_tokens=3, seed=7)
LONGER = SamplingParams(temperature=1.0, max_tokens=40, seed=7)


def engine(**more: Any) -> Engine:
    config = EngineConfig(max_running=64)
    return Engine(TARGET, [DraftModel(DRAFT, VOCAB)], Fixed(2), config=config, **more)


def planted(name: str) -> Any:
    return next(fault for fault in FAULTS if fault.name == name).steps


@pytest.mark.parametrize("rule", [rule for rule in Rule if rule.is_exact])
def test_every_exact_rule_passes_its_cheap_enumerations(rule: Rule) -> None:
    own = SamplingParams(temperature=0.6, top_p=0.8, presence_penalty=0.5)
    for check in cheapest_first(all_checks(rule, own))[:6]:
        assert run_check(check, HONEST) < ROUNDING, str(check)


def test_the_approximate_rule_does_not() -> None:
    assert max(run_check(check, HONEST) for check in all_checks(Rule.TYPICAL)) > 0.1


def test_the_user_s_own_settings_are_enumerated_for_every_draw() -> None:
    checks = all_checks(Rule.TOKEN, SamplingParams(temperature=0.6, logit_bias={40_000: 1.0}))
    own = [check for check in checks if check.processed == "your settings"]
    assert {check.draw for check in own} == set(Draw) - {Draw.SHARED_NOISE}
    assert all(check.params.temperature == 0.6 and not check.params.logit_bias for check in own)
    assert len({str(check) for check in checks}) == len(checks)


@pytest.mark.parametrize("count", [300, 3000])
def test_cells_add_up_and_follow_the_law(count: int) -> None:
    cells = exact_cells(engine(), PROMPT, PARAMS, count)
    assert sum(cells.values()) == pytest.approx(1, abs=1e-6)
    whole = max((cell for cell in cells if -1 not in cell), key=lambda cell: (len(cell), cells[cell]))
    chance = 1.0
    for place, token in enumerate(whole):
        weights = np.exp(TARGET.law([*PROMPT, *whole[:place]]).astype(np.float64))
        chance *= weights[token] / weights.sum()
    assert len(whole) == (3 if count == 3000 else 2)
    assert cells[whole] == pytest.approx(chance, rel=1e-4)


@pytest.mark.parametrize("rule", [Rule.TOKEN, Rule.BLOCK, Rule.TRAVERSAL])
def test_the_shipped_rules_have_the_target_s_law(rule: Rule) -> None:
    running = engine()
    answer = chi_square(
        exact_cells(running, PROMPT, PARAMS, 1500),
        sample_texts(running, PROMPT, LONGER, Speculation(rule=rule), 1500, 3),
    )
    assert answer["p_value"] > 1e-3
    assert answer["cells"] > 20
    assert running.stats.accepted > 100


@pytest.mark.parametrize("name", ["ratio without its denominator", "everything accepted", "correction drawn from p"])
def test_a_planted_fault_is_seen_by_sampling(name: str) -> None:
    running = engine()
    running.steps = planted(name)
    texts = sample_texts(running, PROMPT, LONGER, Speculation(rule=Rule.TOKEN), 1500, 3)
    assert chi_square(exact_cells(running, PROMPT, PARAMS, 1500), texts)["p_value"] < 1e-4


def test_first_tokens_of_longer_texts_are_drafted_for_in_full() -> None:
    running = engine()
    asked = Speculation(rule=Rule.TOKEN, tree=(3, 9), length=2)
    texts = sample_texts(running, PROMPT, LONGER, asked, 100, 3)
    assert {len(text) for text in texts} == {3}
    assert texts.total() == 100
    assert running.stats.drafted > 6 * running.stats.drafted_steps  # far more than what three tokens have room for
    assert running.num_unfinished == 0


def test_an_impossible_text_fails_whatever_the_rest() -> None:
    cells = {(0,): 0.5, (1,): 0.5}
    answer = chi_square(cells, Counter({(0,): 500, (1,): 499, (2,): 1}))
    assert (answer["impossible"], answer["p_value"]) == (1, 0.0)


def test_rare_cells_are_pooled() -> None:
    cells = {(0,): 0.9, (1, -1): 0.097, (1, 2): 0.002, (1, 3): 0.001}
    answer = chi_square(cells, Counter({(0, 4): 900, (1, 5): 97, (1, 2): 2, (1, 3): 1}))
    assert (answer["cells"], answer["degrees"]) == (2, 1)
    assert answer["statistic"] == pytest.approx(0, abs=1e-9)
    assert answer["total_variation"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("degrees", "need"), [(8, 46.8), (26, 64.8), (63, 87.0), (255, 149.0)])
def test_the_smallest_difference_is_that_of_the_non_central_law(degrees: int, need: float) -> None:
    seen = smallest_difference(10_000, degrees, 1e-3, 0.99)
    assert 4 * seen**2 * 10_000 == pytest.approx(need, rel=0.01)
    assert tail(26.124, 8) == pytest.approx(1e-3, rel=1e-2)


def test_a_difference_of_the_stated_size_is_seen_as_often_as_is_said() -> None:
    chance = np.random.default_rng(0)
    law = np.full(20, 0.05)
    size, power, count = 0.01, 0.9, 2000
    shift = smallest_difference(count, 19, size, power)
    other = law + np.where(np.arange(20) < 10, 1, -1) * shift / 10
    cells = {(token,): float(weight) for token, weight in enumerate(law)}
    hits = 0
    for _ in range(300):
        counts = chance.multinomial(count, other)
        hits += chi_square(cells, Counter({(t,): int(n) for t, n in enumerate(counts)}))["p_value"] < size
    assert 0.84 < hits / 300 < 0.97


# -- paths and logits --------------------------------------------------------------------------------------------------

DECODER = random_decoder(1, vocab_size=64, hidden=32, layers=2)


def test_verify_passes_have_the_logits_of_single_rows() -> None:
    text = list(np.random.default_rng(1).integers(0, 64, 60).tolist())
    found = logit_differences(DECODER, text, 12, 0)
    assert list(found) == [*(f"chain of {n} rows" for n in (2, 4, 8, 16, 32)), "trees of up to 32 rows"]
    assert max(found.values()) < 1e-4


def test_a_target_whose_trees_see_their_siblings_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    honest = DECODER.forward

    def blind(inputs: Any, cache: Any) -> Any:
        return honest(replace(inputs, segments=[replace(s, parents=None) for s in inputs.segments]), cache)

    text = list(np.random.default_rng(1).integers(0, 64, 60).tolist())
    monkeypatch.setattr(DECODER, "forward", blind)
    found = logit_differences(DECODER, text, 12, 0)
    assert found["trees of up to 32 rows"] > 0.1
    assert found["chain of 8 rows"] < 1e-4


def wrong() -> ScriptedDrafter:
    return ScriptedDrafter(lambda _id, _tokens, budget: Proposal.chain([1, 2, 3][:budget], source="scripted"))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_equal_paths_are_equal_and_a_fault_parts_them_at_a_margin(temperature: float) -> None:
    params = [SamplingParams(temperature=temperature, max_tokens=12, seed=seed) for seed in range(3)]
    prompts = [(1, 2, 3), (4, 5), (6,)]
    on, off = Engine(DECODER, [wrong()], Fixed(3)), Engine(DECODER)
    assert [run["divergence"] for run in compare_paths(on, off, prompts, params, Speculation())] == [None] * 3
    on = Engine(DECODER, [wrong()], Fixed(3))
    on.steps = planted("the draft is trusted")
    for run in compare_paths(on, off, prompts, params, Speculation()):
        assert run["divergence"]["place"] < 3
        assert run["divergence"]["margin"] >= 0
        assert run["divergence"]["decided"] > 0


# -- what it proves ----------------------------------------------------------------------------------------------------

FACTS = {"is_greedy": False, "is_invariant": False, "temperature": 1.0}
RULE = {"a": {"difference": 1e-16}}
FAULT = {"b": {"check": "a"}}
SEEN = {"p_value": 0.4, "size": 1e-3, "smallest_difference": 0.1, "power": 0.99}
LAW = {"p": SEEN | {"samples": 9, "accepted": 3, "drafted": 8}}


def path(divergence: Any = None, accepted: int = 5) -> dict[str, Any]:
    return {"0 to 0": [{"prompt": "p", "num_tokens": 9, "accepted": accepted, "divergence": divergence}]}


def judged(by: Rule = Rule.MATCH, is_complete: bool = True, **changes: Any) -> tuple[bool | None, str, dict[str, str]]:
    parts: dict[str, Any] = {"rule": RULE, "fault": FAULT, "paths": path(), "logits": {"p": {"x": 0.0}}, "law": LAW}
    facts = FACTS | {name: changes.pop(name) for name in list(changes) if name in FACTS}
    found = claims(parts | changes, by, facts)
    return (*verdict(found, by, is_complete=is_complete), {claim.text: claim.status for claim in found})


def test_what_holds_is_lossless_as_far_as_it_was_checked() -> None:
    for rule in (Rule.MATCH, Rule.TOKEN):
        is_lossless, sentence, _ = judged(rule)
        assert is_lossless
        assert sentence.startswith("Lossless as far as it was checked")


def test_an_approximate_rule_is_never_lossless() -> None:
    is_lossless, sentence, _ = judged(Rule.TYPICAL)
    assert is_lossless is False
    assert "approximate" in sentence


def test_an_unfinished_audit_says_so() -> None:
    assert judged(is_complete=False)[0] is None


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        (Rule.MATCH, {"rule": {"a": {"difference": 1e-3}}}),
        (Rule.MATCH, {"fault": {"b": {"check": None}}}),
        (Rule.TOKEN, {"law": {"p": LAW["p"] | {"p_value": 1e-4}}}),
        (Rule.MATCH, {"paths": path({"place": 1, "margin": 0.5, "decided": 0.5})}),
        (Rule.MATCH, {"paths": path({"place": 1, "margin": 0.0, "decided": 0.0}), "is_invariant": True}),
        (Rule.MATCH, {"logits": {"p": {"x": 1e-6}}, "is_invariant": True}),
    ],
)
def test_each_claim_can_fail(rule: Rule, changes: dict[str, Any]) -> None:
    is_lossless, sentence, statuses = judged(rule, **changes)
    assert is_lossless is False
    assert sentence.startswith("Not lossless")
    assert list(statuses.values()).count("fails") == 1


def test_a_text_may_part_where_rounding_decides() -> None:
    near = path({"place": 1, "margin": 2e-3, "decided": 2e-3})
    is_lossless, _, statuses = judged(paths=near, logits={"p": {"x": 1e-3}})
    assert is_lossless
    assert statuses["equal seeds give equal texts with speculation on and off, up to rounding of the logits"] == "holds"


def test_what_tried_nothing_is_not_called_checked() -> None:
    assert (
        judged(paths=path(accepted=0))[2]["equal seeds give equal texts with speculation on and off"] == "not checked"
    )
    law = {"p": LAW["p"] | {"accepted": 0}}
    assert judged(Rule.TOKEN, law=law)[2]["the first tokens have the target's law"] == "not checked"
