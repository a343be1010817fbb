"""The whole sampling matrix: every processor, end, drafter and rule together give what plain decoding gives.

Under MATCH, and under every exact rule at temperature 0, token for token; under the law-exact rules the law of whole
texts, by enumeration of every coin that the engine asks. What does not fit together is refused by name.
"""

from collections.abc import Sequence

import pytest
from engine_helpers import assert_idle, decoder, engine, finish
from matrix_helpers import (
    DRAFTINGS,
    ENDS,
    EXACT_RULES,
    FREE_RULES,
    LETTERS,
    NEEDY,
    PROCESSORS,
    PROMPT,
    STOPS,
    TOKENIZER,
    Case,
    Known,
    cases,
    drafting,
    target,
)
from matrix_laws import SMALL_STOPS, engine_law, small_case

from outrider.analysis.enumerate import largest_difference
from outrider.core.params import Rule, Speculation
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.errors import UnsupportedError


def differing(name: str, rules: Sequence[Rule], temperature: float, seed: int = 7) -> list[str]:
    """Names of the cases whose text is not the one of plain decoding; all run in one batch, rules by turns."""
    known = Known()
    other = decoder(8, LETTERS, target().context_length, layers=1)
    drafters, policy = drafting(name, target(), other, known)
    running = engine(target(), drafters, policy, tokenizer=TOKENIZER, end_ids=ENDS)
    asked = cases(temperature, seed)
    requests: list[tuple[Case, Request]] = []
    for number, case in enumerate(asked):
        rule = rules[(number + DRAFTINGS.index(name)) % len(rules)]
        request = submit(running, case, rule)
        if request is not None:
            known.texts[request.request_id] = [*PROMPT, *case.full]
            requests.append((case, request))
    assert len(requests) >= len(asked) // len(rules)
    finish(running)
    assert_idle(running)
    assert not running.drafters.num_failures or not {*rules} <= FREE_RULES
    if name.startswith("scripted") and not (name.endswith("tree") and rules == [Rule.BLOCK]):  # which judges no tree
        assert running.stats.accepted_fraction > 0.1
    return [
        f"{case.name}, {request.speculation.rule.name}"
        for case, request in requests
        if request.output != case.expected or (request.finish_reason == "length") != case.reaches_a_limit
    ]


def submit(running: Engine, case: Case, rule: Rule) -> Request | None:
    """A request of the matrix; None where the rule and the drafters do not go together, which is said by name."""
    try:
        return running.submit(PROMPT, case.params, Speculation(rule=rule), mask=case.mask)[0]
    except UnsupportedError as error:
        if rule.name not in str(error):
            raise
        return None


def test_the_cases_end_in_all_ways() -> None:
    for temperature in (0.0, 0.9):
        found = cases(temperature)
        assert len(found) == len(PROCESSORS) * len(STOPS)
        lengths = {stop: {len(case.expected) for case in found if case.name.endswith(stop)} for stop in STOPS}
        assert lengths["max_tokens"] == {7}
        assert lengths["context"] == {12}
        for stop in ("eos", "stop token", "string in a block", "string across blocks"):
            assert min(lengths[stop]) < 12


@pytest.mark.parametrize("name", DRAFTINGS)
def test_under_match_the_text_is_plain_decoding_s(name: str) -> None:
    assert differing(name, [Rule.MATCH], 0.9) == []


@pytest.mark.parametrize("name", DRAFTINGS)
def test_at_temperature_0_the_text_is_plain_decoding_s_under_every_rule(name: str) -> None:
    assert differing(name, EXACT_RULES, 0.0) == []


@pytest.mark.slow
@pytest.mark.parametrize("rule", EXACT_RULES)
@pytest.mark.parametrize("name", DRAFTINGS)
def test_the_whole_product_of_texts(name: str, rule: Rule) -> None:
    """Every processor, end, drafter, rule and seed: none by turns."""
    assert differing(name, [rule], 0.0) == []
    for seed in (1007, 2007) if rule is Rule.MATCH else ():
        assert differing(name, [rule], 0.9, seed) == []
        assert differing(name, [rule], 1.6, seed) == []


LAW_RULES = [rule for rule in EXACT_RULES if rule is not Rule.MATCH]
SMALL_VOCABULARIES = ["small vocabulary", "reduced head", "reduced head tree"]
SMALL_DRAFTINGS = [
    *(name for name in DRAFTINGS if name not in ("scripted", "scripted tree", "ensemble of trees")),
    "favourites",
    "favourite tree",
    *SMALL_VOCABULARIES,
]


def parts(name: str) -> list[object]:
    """Numbers of the parts that a drafter's processors are tested in: few at a time where drafts are drawn."""
    if name.removesuffix(" tree") not in NEEDY and name not in SMALL_VOCABULARIES:
        return [pytest.param(name, 0, 1)]
    return [pytest.param(name, part, 4, marks=[pytest.mark.slow] if part else []) for part in range(4)]


@pytest.mark.parametrize(("name", "part", "num_parts"), [case for name in SMALL_DRAFTINGS for case in parts(name)])
@pytest.mark.parametrize("rule", LAW_RULES)
def test_the_law_of_whole_texts_is_plain_decoding_s(
    rule: Rule, name: str, part: int, num_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if num_parts > 1 and rule not in FREE_RULES:
        num_parts *= 3  # trees that are drawn have many more ways to fall
    turn = SMALL_DRAFTINGS.index(name) + LAW_RULES.index(rule)
    for number, processor in enumerate(PROCESSORS):
        if (number + turn) % num_parts != part:
            continue
        stop = SMALL_STOPS[(number + turn) % len(SMALL_STOPS)]  # other pairs with every drafter and rule
        asked = small_case(processor, stop, temperature=1.3 if number % 2 else 0.8)
        got = engine_law(name, rule, asked, monkeypatch)
        assert got is None or largest_difference(got, asked.law()) < 1e-6, (processor, stop)


@pytest.mark.slow
@pytest.mark.parametrize("stop", SMALL_STOPS)
@pytest.mark.parametrize("name", [name for name in SMALL_DRAFTINGS if len(parts(name)) == 1])
@pytest.mark.parametrize("rule", LAW_RULES)
def test_the_law_of_every_processor_with_every_end(
    rule: Rule, name: str, stop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for processor in PROCESSORS:
        asked = small_case(processor, stop, temperature=1.1)
        got = engine_law(name, rule, asked, monkeypatch)
        assert got is None or largest_difference(got, asked.law()) < 1e-6, processor
