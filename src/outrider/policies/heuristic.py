"""The rule of thumb: draft more while drafts are right, less when one was wrong.

It counts tokens; it knows no confidences. Invariants: a request's length follows from that request's own outcomes alone
and is forgotten with it, so no request starts with what another one left behind (a defect of shared heuristics:
huggingface/transformers#28759); the measured price of rows can only shorten it, and only under MATCH, where no text
depends on lengths: elsewhere the same seed gives the same text only while no clock decides.

Source: assisted generation (J. Gante, 2023), +2 after a fully right draft and -1 otherwise.
"""

from collections.abc import Sequence

from outrider.core.params import is_whole_number
from outrider.core.types import IntArray, Outcome, Plan
from outrider.errors import InvalidRequestError
from outrider.policies.base import RequestView, Shape
from outrider.policies.fixed import admit_all, chain_plan
from outrider.policies.thrift import Thrift

__all__ = ["Heuristic"]

_RISE = 2
_FALL = 1


class Heuristic:
    """Lengthens by 2 when all drafted tokens were accepted and shortens by 1 otherwise.

    Args:
        start: draft tokens of a request's first step.
        maximum: draft tokens a step at most.
        drafters: names in order of preference; None for all, in the engine's order.
        minds_costs: whether drafts are shortened, or left out, where their rows cost more than they give, as in a full
            batch (`policies.thrift`).

    Raises:
        InvalidRequestError: not 1 <= start <= maximum.
    """

    def __init__(
        self, start: int = 4, maximum: int = 16, drafters: Sequence[str] | None = None, *, minds_costs: bool = False
    ) -> None:
        if not (is_whole_number(start) and is_whole_number(maximum) and 1 <= start <= maximum):
            raise InvalidRequestError(
                f"policy heuristic has start={start!r} and max={maximum!r}; give whole numbers with 1 <= start <= max."
            )
        self._start = int(start)
        self._maximum = int(maximum)
        self.drafters = None if drafters is None else tuple(drafters)
        self._lengths: dict[str, int] = {}
        self._thrift = Thrift() if minds_costs else None

    @property
    def num_requests(self) -> int:
        """Requests whose length has changed and that have not ended."""
        return len(self._lengths)

    def length(self, request_id: str) -> int:
        """Draft tokens that the request's next step would have without other limits."""
        return self._lengths.get(request_id, self._start)

    def choose(self, views: Sequence[RequestView]) -> list[Plan]:
        """One chain a request, as long as its own history suggests and its rows pay."""
        if self._thrift is not None:
            self._thrift.begin_step(views)
        return [chain_plan(view, self._paying(view.request_id), self.drafters) for view in views]

    def _paying(self, request_id: str) -> int:
        most = None if self._thrift is None else self._thrift.longest(request_id)
        return self.length(request_id) if most is None else min(self.length(request_id), most)

    def admit(self, shapes: Sequence[Shape], views: Sequence[RequestView]) -> list[IntArray]:
        """Everything is verified, or what the stake suffices for."""
        return admit_all(shapes) if self._thrift is None else self._thrift.admit(shapes, views)

    def update(self, outcome: Outcome) -> None:
        """Move the request's length; steps that drafted nothing say nothing."""
        if self._thrift is not None:
            self._thrift.update(outcome)
        if outcome.kept.finish_reason is not None:
            self.forget(outcome.request_id)
            return
        if len(outcome.parents) == 0:
            return
        length = self.length(outcome.request_id)
        moved = length - _FALL if outcome.num_rejected else length + _RISE
        self._lengths[outcome.request_id] = max(1, min(moved, self._maximum))

    def forget(self, request_id: str) -> None:
        """Drop a request's length."""
        self._lengths.pop(request_id, None)
        if self._thrift is not None:
            self._thrift.forget(request_id)
