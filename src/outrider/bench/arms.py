"""What is compared with plain decoding: a drafter with its options, a length and a tree.

This module knows how arms are written, not how they run; it imports no tensor library. Invariant: no two arms are the
same, and each arm's drafter and policy exist.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.drafters.registry import check_drafter, split_drafters
from outrider.errors import InvalidRequestError
from outrider.policies.registry import build_policy

__all__ = ["OFF", "Arm", "plan_arms"]

OFF = "off"
"""Name of the runs without drafts; each round has one, the partner of all others."""

_POLICY = "heuristic"


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of speculating.

    Attributes:
        name: what reports call it.
        drafters: such as `ngram:max=4`; several work together.
        length: draft tokens a step; None leaves it to the policy.
        policy: such as `heuristic`.
        tree: such as "3x16"; None for chains.
    """

    name: str
    drafters: tuple[str, ...]
    length: int | None
    policy: str
    tree: str | None = None

    @property
    def predicts(self) -> bool:
        """Whether one of the drafters follows a prediction."""
        return any(check_drafter(text)[0].name == "prediction" for text in self.drafters)


def plan_arms(
    drafters: Sequence[str], lengths: Sequence[int], policy: str | None, trees: Sequence[str] = ()
) -> list[Arm]:
    """Every drafter with every length and every tree.

    Args:
        drafters: as written; those joined by + work together.
        lengths: draft tokens a step; empty leaves it to the policy.
        policy: as written; None takes `fixed` with the length, or `heuristic` without one. With a policy, a length is
            the most that it may choose.
        trees: bounds of trees, such as "3x16"; empty for chains.

    Raises:
        InvalidRequestError: a drafter or policy does not exist, or two arms are the same.
    """
    for text in drafters:
        for part in split_drafters(text):
            check_drafter(part)
    if policy is not None:
        build_policy(policy)
    arms = [
        _arm(text, length, policy, tree)
        for text in drafters
        for length in lengths or (None,)
        for tree in trees or (None,)
    ]
    names = [arm.name for arm in arms]
    for name in names:
        if names.count(name) > 1 or name == OFF:
            raise InvalidRequestError(f"{name!r} is to be measured twice; name each drafter, length and tree once.")
    return arms


def _arm(drafter: str, length: int | None, policy: str | None, tree: str | None) -> Arm:
    name = drafter if length is None else f"{drafter} length {length}"
    name = name if tree is None else f"{name} tree {tree}"
    chosen = policy or (_POLICY if length is None else f"fixed:length={length}")
    return Arm(name, split_drafters(drafter), length, chosen, tree)
