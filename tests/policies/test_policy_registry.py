import subprocess
import sys

import pytest

from outrider.core.params import Rule
from outrider.errors import InvalidRequestError
from outrider.policies.base import RequestView
from outrider.policies.registry import build_policy, list_policies

VIEW = RequestView("r", Rule.MATCH, ("a", "b"), None, context_length=1, num_output=0, max_nodes=64)


def depth(policy):
    return policy.choose([VIEW])[0].max_depth


def test_policies_are_built_by_name_with_their_options():
    assert depth(build_policy("fixed")) == 5
    assert depth(build_policy("fixed:length=6")) == 6
    assert depth(build_policy("heuristic")) == 4
    assert depth(build_policy("heuristic:start=3,max=9")) == 3
    assert depth(build_policy("heuristic:max=2")) == 2
    assert build_policy("fixed", ["b"]).choose([VIEW])[0].drafters == (("b", 5),)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("auto2", "policy 'auto2' does not exist; choose one of fixed, heuristic."),
        ("fixed:size=3", "policy fixed has no option 'size'; it has length."),
        ("fixed:length=0", "length of policy fixed is '0'; give a whole number of at least 1."),
        ("fixed:length=x", "length of policy fixed is 'x'"),
        ("heuristic:start=9,max=3", "start=9 and max=3"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_sentence(text, sentence):
    with pytest.raises(InvalidRequestError) as caught:
        build_policy(text)
    assert sentence in str(caught.value)


def test_the_list_says_what_exists():
    entries = list_policies()
    assert [entry.name for entry in entries] == ["fixed", "heuristic"]
    assert all(entry.help and option.help for entry in entries for option in entry.options)


def test_policies_import_no_torch():
    code = "import sys, outrider.policies.registry; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
