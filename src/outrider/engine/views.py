"""What policies and drafters are shown of a scheduled request: numbers to the one, text and noise to the other."""

from collections.abc import Callable, Sequence

from outrider.core.types import Plan, Proposal
from outrider.drafters.base import DraftContext
from outrider.engine.scheduler import Item
from outrider.policies.base import RequestView

__all__ = ["draft", "draft_context", "request_view"]


def request_view(item: Item, drafters: Sequence[str]) -> RequestView:
    """All that a policy may see of a request.

    Args:
        item: the request's part of the pass.
        drafters: names of the engine's drafters.
    """
    request, asked = item.request, item.request.speculation
    names = drafters if asked.drafters is None else asked.drafters
    return RequestView(
        request_id=request.request_id,
        rule=asked.rule,
        drafters=() if asked.off else tuple(names),
        length=asked.length,
        tree=asked.shape,
        context_length=len(request.tokens),
        num_output=request.num_output,
        max_nodes=item.max_nodes,
    )


def draft(
    propose: Callable[[Sequence[DraftContext]], list[Proposal]], items: Sequence[Item], plans: Sequence[Plan]
) -> list[Proposal]:
    """A proposal for each item; nobody is asked about those whose plan is off.

    Args:
        propose: answers for several requests at once.
        items: the judged items.
        plans: what was decided for each.
    """
    drafting = [number for number, plan in enumerate(plans) if not plan.is_off]
    found = propose([draft_context(items[number], plans[number]) for number in drafting])
    proposals = [Proposal.empty()] * len(items)
    for number, proposal in zip(drafting, found, strict=True):
        proposals[number] = proposal
    return proposals


def draft_context(item: Item, plan: Plan) -> DraftContext:
    """All that a drafter may see of a request for one step."""
    request = item.request
    return DraftContext(
        request_id=request.request_id,
        tokens=request.tokens,
        num_prompt=request.num_prompt,
        plan=plan,
        draw=request.draw,
        rule=request.speculation.rule,
        processor=request.processor,
        state=request.state,
        coins=request.stream,
        stop_token_ids=request.end_ids,
        prediction=request.prediction,
        scope=request.speculation.scope,
    )
