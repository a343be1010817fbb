"""The policies that exist, by name: `fixed:length=6`, `heuristic:start=4,max=16`.

This module knows how policies are written and built, not what they decide. Invariant: every option that is listed is
passed on, and every option that is not listed is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.core.options import Option, choose, parse_spec, read_options
from outrider.policies.base import Policy
from outrider.policies.fixed import Fixed
from outrider.policies.heuristic import Heuristic

__all__ = ["PolicyEntry", "build_policy", "list_policies"]


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """A policy as help texts and documentation list it.

    Attributes:
        name: how it is asked for.
        help: one line for people.
        options: its settings.
        build: makes it from checked options and the drafters' order.
    """

    name: str
    help: str
    options: tuple[Option, ...]
    build: Callable[[Mapping[str, Any], Sequence[str] | None], Policy]


_ENTRIES = (
    PolicyEntry(
        name="fixed",
        help="the same number of draft tokens in every step",
        options=(Option("length", int, "draft tokens a step", default=5, minimum=1),),
        build=lambda options, drafters: Fixed(options["length"], drafters),
    ),
    PolicyEntry(
        name="heuristic",
        help="two draft tokens more after a fully accepted draft, one less otherwise",
        options=(
            Option("start", int, "draft tokens of a request's first step; 4 or max if left out", minimum=1),
            Option("max", int, "draft tokens a step at most", default=16, minimum=1),
            Option(
                "costs", bool, "draft less, or not, where the measured price of rows is above the gain", default=True
            ),
        ),
        build=lambda options, drafters: Heuristic(
            min(4, options["max"]) if options["start"] is None else options["start"],
            options["max"],
            drafters,
            minds_costs=options["costs"],
        ),
    ),
)


def list_policies() -> tuple[PolicyEntry, ...]:
    """All policies, by name."""
    return tuple(sorted(_ENTRIES, key=lambda entry: entry.name))


def build_policy(text: str, drafters: Sequence[str] | None = None) -> Policy:
    """Make a policy from its text.

    Args:
        text: such as `fixed:length=6`.
        drafters: names in order of preference; None for all, in the engine's order.

    Raises:
        InvalidRequestError: the name or an option does not exist, or a value does not fit.
    """
    name, given = parse_spec(text)
    entry = choose("policy", name, {entry.name: entry for entry in _ENTRIES})
    return entry.build(read_options(f"policy {name}", given, entry.options), drafters)
