"""A recorded text as if a target wrote it: how many passes a drafter would have saved.

No model runs; the recorded output is what the target says. This module knows drafters and trees, not engines or
policies. Invariant: the steps tile the output, and a drafter sees only what a real run would have shown it by then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from outrider.core.coins import Stream
from outrider.core.history import History
from outrider.core.params import Draw, SamplingParams
from outrider.core.process import Processor
from outrider.core.tree import children
from outrider.core.types import Kept, Plan, Proposal
from outrider.drafters.base import DraftContext, Drafter, Observation

__all__ = ["Replay", "common_share", "replay"]


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of one replayed text.

    Attributes:
        steps: (draft tokens, accepted draft tokens, emitted tokens) of each pass.
        accepted_at: output positions whose tokens were accepted draft tokens, ascending.
    """

    steps: tuple[tuple[int, int, int], ...]
    accepted_at: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Emitted tokens."""
        return sum(emitted for _, _, emitted in self.steps)

    @property
    def block_efficiency(self) -> float:
        """Emitted tokens a pass; 0 for an empty text."""
        return self.num_tokens / len(self.steps) if self.steps else 0.0


def replay(
    drafter: Drafter,
    prompt: Sequence[int],
    output: Sequence[int],
    plan: Plan,
    *,
    prediction: Sequence[int] | None = None,
    scope: str = "",
    request_id: str = "replay",
) -> Replay:
    """Let a drafter draft for a recorded text.

    Args:
        drafter: a loaded drafter.
        prompt: token ids, at least one.
        output: what the target wrote.
        plan: how much is drafted in every pass; depths are cut where the text ends.
        prediction: a text that the caller expects.
        scope: whose shared state is read and fed.
        request_id: what the drafter is told; not followed yet.
    """
    tokens, history = list(prompt), History(prompt)
    processor = Processor(SamplingParams(), 1 + max(*prompt, *output, *(prediction or ()), 0, 0))
    drafter.begin(request_id, tokens)
    steps: list[tuple[int, int, int]] = []
    accepted_at: list[int] = []
    done = 0
    while done < len(output):
        context = DraftContext(
            request_id=request_id,
            tokens=tokens,
            num_prompt=len(prompt),
            plan=plan,
            draw=Draw.DETERMINISTIC,
            processor=processor,
            state=processor.start(history),
            coins=Stream(0, len(steps)),
            prediction=prediction,
            scope=scope,
        )
        proposal = drafter.propose([context])[0]
        nodes = _accepted(proposal, output[done:])
        emitted = tuple(output[done : done + len(nodes) + 1])
        tokens.extend(emitted)
        history.extend(emitted)
        drafter.observe(request_id, Kept(emitted, tuple(nodes[: len(emitted) - 1]), len(nodes)), Observation())
        accepted_at += range(done, done + len(nodes))
        steps.append((proposal.num_nodes, len(nodes), len(emitted)))
        done += len(emitted)
    drafter.end(request_id)
    return Replay(tuple(steps), tuple(accepted_at))


def common_share(prediction: Sequence[int], output: Sequence[int], result: Replay, *, shortest: int = 3) -> float:
    """Share of the tokens common to prediction and output that were accepted draft tokens.

    Args:
        prediction: a text that the caller expected.
        output: what was written.
        result: its replay.
        shortest: common blocks shorter than this do not count.

    Returns:
        In [0, 1]; 1 where nothing is common.
    """
    blocks = SequenceMatcher(None, list(prediction), list(output), autojunk=False).get_matching_blocks()
    common = {place for b in blocks if b.size >= shortest for place in range(b.b, b.b + b.size)}
    return len(common.intersection(result.accepted_at)) / len(common) if common else 1.0


def _accepted(proposal: Proposal, truth: Sequence[int]) -> list[int]:
    """Nodes of the path that the text follows, root to leaf."""
    below = children(proposal.parents)
    nodes: list[int] = []
    node = -1
    for token in truth:
        right = next((child for child in below[node] if proposal.tokens[child] == token), None)
        if right is None:
            break
        nodes.append(right)
        node = right
    return nodes
