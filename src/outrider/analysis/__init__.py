"""What speculation should give: closed forms, exact enumeration of the shipped rules, toy rounds; NumPy only."""

from outrider.analysis.advice import Advice, Candidate, advise
from outrider.analysis.agreement import Agreement, compare_laws
from outrider.analysis.cost import CostCurve
from outrider.analysis.enumerate import EnumeratingCoins, complete, enumerate_law, largest_difference, text_law
from outrider.analysis.estimate import Interval, acceptance_by_place, cost_ratio, mean_of_counts, share, tokens_a_pass
from outrider.analysis.expected import Expected, expected_pass
from outrider.analysis.simulate import Rounds, Toy, toy_laws
from outrider.analysis.speed import best_length, break_even, free_width, largest_batch, speedup_at_width
from outrider.analysis.theory import (
    acceptance,
    accepted_length_law,
    coupled_acceptance,
    emitted_law,
    expected_tokens,
    leftover,
    speedup,
)
from outrider.analysis.trees import best_tree, sibling_chances, tree_tokens

__all__ = [
    "Advice",
    "Agreement",
    "Candidate",
    "CostCurve",
    "EnumeratingCoins",
    "Expected",
    "Interval",
    "Rounds",
    "Toy",
    "acceptance",
    "acceptance_by_place",
    "accepted_length_law",
    "advise",
    "best_length",
    "best_tree",
    "break_even",
    "compare_laws",
    "complete",
    "cost_ratio",
    "coupled_acceptance",
    "emitted_law",
    "enumerate_law",
    "expected_pass",
    "expected_tokens",
    "free_width",
    "largest_batch",
    "largest_difference",
    "leftover",
    "mean_of_counts",
    "share",
    "sibling_chances",
    "speedup",
    "speedup_at_width",
    "text_law",
    "tokens_a_pass",
    "toy_laws",
    "tree_tokens",
]
