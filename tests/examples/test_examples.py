"""The examples keep their targets' laws: what is drafted never changes what is simulated or composed."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from outrider.analysis.enumerate import complete, enumerate_law, largest_difference, text_law
from outrider.core.coins import Stream
from outrider.core.params import Rule

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


WEATHER, MELODY = load("weather"), load("melody")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_weather_is_the_same_in_fewer_passes(seed):
    plain, plain_passes = WEATHER.simulate(80, seed, drafts=False)
    fast, fast_passes = WEATHER.simulate(80, seed, drafts=True)
    assert plain == fast
    assert len(set(plain)) > 1
    assert fast_passes < plain_passes == 80


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_matched_melody_is_the_one_composed_without_drafts(seed):
    plain, plain_passes = MELODY.compose(40, Rule.MATCH, seed, ())
    fast, fast_passes = MELODY.compose(40, Rule.MATCH, seed, (3, 2, 1))
    assert plain == fast
    assert fast_passes < plain_passes == 39


@pytest.mark.parametrize(
    ("rule", "widths"),
    [(Rule.TOKEN, (1, 1)), (Rule.TOKEN, (2,)), (Rule.BLOCK, (1, 1)), (Rule.TRAVERSAL, (2,))],
)
def test_melodies_have_the_composer_s_law(rule, widths):
    start = (0, 2)

    def one_pass(coins):
        return MELODY.one_pass(start, rule, Stream(0, 0), widths, coins)

    def target(notes):
        return MELODY.composer((*start, *notes))

    length = len(widths) + 1
    got = complete(enumerate_law(one_pass), target, length)
    assert largest_difference(got, text_law(target, length)) < 1e-14
    pupils = text_law(lambda notes: MELODY.pupil((*start, *notes)), length)
    assert largest_difference(got, pupils) > 0.01  # the draft has another law


def test_the_examples_run_as_scripts(capsys):
    WEATHER.main()
    MELODY.main()
    said = capsys.readouterr().out
    assert "the same weather: True" in said
    assert len(said.splitlines()) == 6
    assert np.isfinite(WEATHER.transition_logits((0, 1))).all()
    assert "torch" in sys.modules  # the weather runs on the serving engine
