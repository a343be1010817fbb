"""What is compared with plain decoding: a drafter with its options and a length.

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
    """

    name: str
    drafters: tuple[str, ...]
    length: int | None
    policy: str

    @property
    def predicts(self) -> bool:
        """Whether one of the drafters follows a prediction."""
        return any(check_drafter(text)[0].name == "prediction" for text in self.drafters)


def plan_arms(drafters: Sequence[str], lengths: Sequence[int], policy: str | None) -> list[Arm]:
    """Every drafter with every length.

    Args:
        drafters: as written; those joined by + work together.
        lengths: draft tokens a step; empty leaves it to the policy.
        policy: as written; None takes `fixed` with the length, or `heuristic` without one. With a policy, a length is
            the most that it may choose.

    Raises:
        InvalidRequestError: a drafter or policy does not exist, or two arms are the same.
    """
    for text in drafters:
        for part in split_drafters(text):
            check_drafter(part)
    if policy is not None:
        build_policy(policy)
    arms = [_arm(text, length, policy) for text in drafters for length in lengths or (None,)]
    names = [arm.name for arm in arms]
    for name in names:
        if names.count(name) > 1 or name == OFF:
            raise InvalidRequestError(f"{name!r} is to be measured twice; name each drafter and length once.")
    return arms


def _arm(drafter: str, length: int | None, policy: str | None) -> Arm:
    name = drafter if length is None else f"{drafter} length {length}"
    chosen = policy or (_POLICY if length is None else f"fixed:length={length}")
    return Arm(name, split_drafters(drafter), length, chosen)
