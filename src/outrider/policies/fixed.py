"""The policy that never changes its mind: every step drafts the same number of tokens deep.

It knows no outcome. Invariant: a plan never exceeds what is still of use to the request or what the request allows.
"""

from collections.abc import Sequence

import numpy as np

from outrider.core.params import Rule, is_whole_number
from outrider.core.types import IntArray, Outcome, Plan
from outrider.errors import InvalidRequestError
from outrider.policies.base import RequestView, Shape

__all__ = ["Fixed", "admit_all", "chain_plan"]


def chain_plan(view: RequestView, length: int, order: Sequence[str] | None = None) -> Plan:
    """The plan of one chain, or of a tree as deep where the request asks for one.

    Args:
        view: the request.
        length: wanted draft tokens.
        order: preferred drafters, best first; None keeps the request's own order. Names that may not serve the request
            are passed over.

    Returns:
        A plan within `view.max_nodes` and `view.length`. Outside MATCH it names one drafter: choosing between sampled
        proposals after they were seen would bias the output.
    """
    limit = min(length, view.max_nodes, length if view.length is None else view.length)
    names = [name for name in (view.drafters if order is None else order) if name in view.drafters]
    if view.rule is not Rule.MATCH:
        names = names[:1]
    if limit < 1 or not names:
        return Plan()
    width, nodes = (1, limit) if view.tree is None else view.tree
    if width == 1:
        nodes = min(nodes, limit)
    nodes = min(nodes, view.max_nodes)
    return Plan(drafters=tuple((name, nodes) for name in names), max_depth=min(limit, nodes), max_width=width)


def admit_all(shapes: Sequence[Shape]) -> list[IntArray]:
    """Every node of every proposal."""
    return [np.arange(len(shape.parents), dtype=np.int64) for shape in shapes]


class Fixed:
    """Drafts `length` tokens in every step.

    Args:
        length: draft tokens a step.
        drafters: names in order of preference; None for all, in the engine's order.

    Raises:
        InvalidRequestError: the length is no whole number, or below 1.
    """

    def __init__(self, length: int = 5, drafters: Sequence[str] | None = None) -> None:
        if not is_whole_number(length) or length < 1:
            raise InvalidRequestError(
                f"length of policy fixed is {length!r}; give a whole number of 1 or more, or turn speculation off."
            )
        self._length = int(length)
        self.drafters = None if drafters is None else tuple(drafters)

    def choose(self, views: Sequence[RequestView]) -> list[Plan]:
        """The same plan for all, within each request's limits."""
        return [chain_plan(view, self._length, self.drafters) for view in views]

    def admit(self, shapes: Sequence[Shape], views: Sequence[RequestView]) -> list[IntArray]:  # noqa: ARG002 - the protocol's
        """Everything is verified."""
        return admit_all(shapes)

    def update(self, outcome: Outcome) -> None:
        """There is nothing to learn."""

    def forget(self, request_id: str) -> None:
        """There is nothing to forget."""
