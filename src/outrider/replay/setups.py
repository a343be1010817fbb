"""What is compared: a set of drafters, a policy, a length.

This module knows how they are written. Invariant: a setup that was made names drafters and a policy that exist and need
no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outrider.core.types import IntArray, Outcome, Plan
from outrider.drafters.base import Drafter
from outrider.drafters.registry import build_drafter, check_drafter, split_drafters
from outrider.errors import InvalidRequestError, UnsupportedError
from outrider.policies.base import Policy, RequestView, Shape
from outrider.policies.registry import build_policy

__all__ = ["Branching", "Setup", "Tree", "make_setups", "read_tree"]


@dataclass(frozen=True, slots=True)
class Tree:
    """Bounds of a draft tree.

    Attributes:
        width: children of a node at most.
        nodes: draft tokens of each drafter at most.
    """

    width: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Setup:
    """One way of speculating.

    Attributes:
        drafters: such as ("ngram:max=4", "suffix"); they draft together.
        policy: such as "fixed:length=8".
        length: draft tokens a step at most; None for what the policy says.
        tree: bounds of the tree; None for chains.
    """

    drafters: tuple[str, ...]
    policy: str
    length: int | None = None
    tree: Tree | None = None

    @property
    def drafters_text(self) -> str:
        """The drafters as they are written."""
        return "+".join(self.drafters)

    @property
    def policy_text(self) -> str:
        """Policy, length and tree as they are shown."""
        limit = "" if self.length is None else f", at most {self.length}"
        tree = "" if self.tree is None else f", tree {self.tree.width}x{self.tree.nodes}"
        return f"{self.policy}{limit}{tree}"

    def build(self) -> tuple[list[Drafter], Policy]:
        """New drafters and a new policy, that have seen nothing."""
        policy = build_policy(self.policy)
        drafters = [build_drafter(text, progress=False) for text in self.drafters]
        return drafters, policy if self.tree is None else Branching(policy, self.tree)


class Branching:
    """Lets the plans of another policy branch.

    Args:
        policy: decides all else.
        tree: bounds of the tree.
    """

    def __init__(self, policy: Policy, tree: Tree) -> None:
        self._policy, self._tree = policy, tree

    def choose(self, views: Sequence[RequestView]) -> list[Plan]:
        """The other policy's plans, wider."""
        plans = self._policy.choose(views)
        return [self._wider(plan, view) for plan, view in zip(plans, views, strict=True)]

    def admit(self, shapes: Sequence[Shape], views: Sequence[RequestView]) -> list[IntArray]:
        """As the other policy decides."""
        return self._policy.admit(shapes, views)

    def update(self, outcome: Outcome) -> None:
        """Let the other policy learn."""
        self._policy.update(outcome)

    def forget(self, request_id: str) -> None:
        """Let the other policy forget."""
        self._policy.forget(request_id)

    def _wider(self, plan: Plan, view: RequestView) -> Plan:
        if plan.is_off:
            return plan
        nodes = min(self._tree.nodes, view.max_nodes)
        return replace(plan, drafters=tuple((name, nodes) for name, _ in plan.drafters), max_width=self._tree.width)


def make_setups(
    drafters: Sequence[str], lengths: Sequence[int], policies: Sequence[str] = (), tree: Tree | None = None
) -> list[Setup]:
    """Every set of drafters with every policy and length.

    Args:
        drafters: such as "ngram:max=4+suffix": drafters of one set are joined by +.
        lengths: draft tokens a step. Without policies each is that of a `fixed` one, else a limit of its own.
        policies: such as "heuristic".
        tree: bounds of the trees; None for chains.

    Raises:
        InvalidRequestError: a drafter or policy does not exist, or an option of it.
        UnsupportedError: a drafter needs a model.
    """
    sets = [split_drafters(text) for text in drafters]
    for parts in sets:
        for part in parts:
            entry, _ = check_drafter(part)
            if entry.needs_target:
                raise UnsupportedError(
                    f"drafter {entry.name} needs a model, and a replay has none; leave it out or run it with "
                    "`outrider generate`."
                )
    for length in lengths:
        if length < 1:
            raise InvalidRequestError(f"length is {length}; give whole numbers of 1 or more.")
    ways: list[tuple[str, int | None]] = [(f"fixed:length={length}", None) for length in lengths]
    if policies:
        limits: Sequence[int | None] = lengths or (None,)
        ways = [(policy, limit) for policy in policies for limit in limits]
    for policy, _ in ways:
        build_policy(policy)
    return [Setup(parts, policy, limit, tree) for parts in sets for policy, limit in ways]


def read_tree(text: str) -> Tree:
    """Bounds written as WIDTHxNODES, such as 4x16.

    Raises:
        InvalidRequestError: it is written otherwise.
    """
    width, _, nodes = text.partition("x")
    if not (width.isdecimal() and nodes.isdecimal() and int(width) >= 1 and int(nodes) >= 1):
        raise InvalidRequestError(f"tree is {text!r}; give children of a node and draft tokens in all, as in 4x16.")
    return Tree(int(width), int(nodes))
