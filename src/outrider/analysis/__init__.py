"""What speculation should give: closed forms and exact enumeration of the shipped rules; NumPy only."""

from outrider.analysis.enumerate import EnumeratingCoins, complete, enumerate_law, largest_difference, text_law
from outrider.analysis.theory import (
    acceptance,
    accepted_length_law,
    coupled_acceptance,
    expected_tokens,
    speedup,
)

__all__ = [
    "EnumeratingCoins",
    "acceptance",
    "accepted_length_law",
    "complete",
    "coupled_acceptance",
    "enumerate_law",
    "expected_tokens",
    "largest_difference",
    "speedup",
    "text_law",
]
