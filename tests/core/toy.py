"""The exact law of one judged pass on toy models, and its distance from plain decoding."""

from collections.abc import Callable

from outrider.analysis.enumerate import EnumeratingCoins, Text, complete, enumerate_law, largest_difference, text_law
from outrider.bench.toys import PROMPT, Toy, ToyLaws, emitted
from outrider.core.params import Rule
from outrider.core.steps import STEPS, Steps
from outrider.core.types import Proposal
from outrider.core.verify import verify


def round_law(
    target: Toy, make: Callable[[EnumeratingCoins], Proposal], rule: Rule, steps: Steps = STEPS
) -> dict[Text, float]:
    """The exact law of what one judged pass emits, draft draws included."""

    def one_pass(coins: EnumeratingCoins) -> Text:
        proposal = make(coins)
        (result,) = verify([rule], ToyLaws(target, [proposal]), [proposal], coins, [len(PROMPT)], steps)
        return emitted(proposal, result)

    return enumerate_law(one_pass)


def bias(
    target: Toy, make: Callable[[EnumeratingCoins], Proposal], rule: Rule, length: int, steps: Steps = STEPS
) -> float:
    """The largest difference from plain decoding over all texts of `length` tokens; 0 for an exact rule."""
    got = complete(round_law(target, make, rule, steps), target.numpy_law, length)
    return largest_difference(got, text_law(target.numpy_law, length))
