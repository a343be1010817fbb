"""What --drafter means, and --rule, --length and --tree together.

This module knows words; it imports no tensor library. Invariant: what it gives names a rule that exists and judges what
the tree asks for.
"""

from collections.abc import Sequence

from outrider.core.params import Rule, Speculation
from outrider.drafters.registry import check_drafter
from outrider.errors import InvalidRequestError
from outrider.models.loading.load import check_dtype, check_implementation
from outrider.models.loading.quantising import check_quantise

__all__ = ["check_drafters", "read_speculation"]


def read_speculation(rule: str, length: int | None, tree: str | None) -> Speculation:
    """How texts are speculated on.

    Raises:
        InvalidRequestError: the rule does not exist or does not judge trees, or a number is out of range.
    """
    rules = {known.value: known for known in Rule}
    if rule not in rules:
        raise InvalidRequestError(f"--rule is {rule!r}; choose one of {', '.join(rules)}.")
    if rule == Rule.BLOCK.value and tree is not None:
        raise InvalidRequestError(
            f"--tree is {tree!r}, but --rule block judges chains; leave --tree out or choose --rule traversal."
        )
    return Speculation(rule=rules[rule], length=length, tree=tree)


def check_drafters(texts: Sequence[str]) -> list[str]:
    """Check drafters as they are written, with all of their options.

    Returns:
        Names of the models that they load.

    Raises:
        InvalidRequestError: a drafter does not exist, or an option or value of it.
    """
    options = [check_drafter(text)[1] for text in texts]
    for given in options:
        check_dtype(given.get("dtype", "auto"))
        check_quantise(given.get("quantize", "none"))
        check_implementation(given.get("implementation", "auto"))
    return [given["model"] for given in options if "model" in given]
