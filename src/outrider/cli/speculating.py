"""What --rule, --length and --tree mean together.

This module knows words; it imports no tensor library. Invariant: what it gives names a rule that exists and judges what
the tree asks for.
"""

from outrider.core.params import Rule, Speculation
from outrider.errors import InvalidRequestError

__all__ = ["read_speculation"]


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
