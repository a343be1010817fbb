"""Whatever computes a formula says where it is from."""

import inspect

import pytest

from outrider.analysis import advice, agreement, cost, estimate, expected, speed, theory, trees

MODULES = (advice, agreement, cost, estimate, expected, speed, theory, trees)
FORMULAS = [
    (module, name) for module in MODULES for name in module.__all__ if inspect.isfunction(getattr(module, name))
]


@pytest.mark.parametrize(("module", "name"), FORMULAS)
def test_a_formula_names_its_source(module, name):
    assert "Source:" in inspect.getdoc(getattr(module, name))
