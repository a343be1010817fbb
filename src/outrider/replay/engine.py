"""The engine that serves, with a recorded target in place of a model.

Only two seams differ from `engine.Engine`: which coins judge, and what a drafter that reads the target's most probable
tokens is shown. Scheduling, planning, drafting, trimming, committing and counting are the very lines that serve.
Invariant: what a request emits is its record.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from outrider.analysis.cost import CostCurve
from outrider.core.coins import Coins
from outrider.core.params import SamplingParams, Speculation
from outrider.core.types import Kept, Proposal, Provenance
from outrider.drafters.base import Drafter
from outrider.engine.batch import BatchLaws
from outrider.engine.config import EngineConfig
from outrider.engine.engine import Engine
from outrider.engine.judged import Judged, observe_rows
from outrider.engine.request import Request
from outrider.engine.scheduler import Item
from outrider.errors import UnsupportedError
from outrider.models.base import ForwardOutputs, Segment
from outrider.policies.base import Policy
from outrider.replay.records import TextRecord
from outrider.replay.target import RecordedCoins, RecordedLaws, RecordedTarget, runner_ups

__all__ = ["Played", "ReplayEngine"]

_WHOLE_PROMPT = 1 << 40  # reading a prompt costs nothing here, so it is never cut


@dataclass(frozen=True, slots=True)
class Played:
    """What came of one text.

    Attributes:
        request: the finished request, with its statistics.
        accepted_at: places of the output whose tokens were accepted draft tokens, ascending.
    """

    request: Request
    accepted_at: tuple[int, ...]


class ReplayEngine(Engine):
    """Plays recorded texts.

    Args:
        records: the texts that will be played, all of one vocabulary.
        drafters: drafters that hold no model.
        policy: decides how to speculate.
        cost: what a pass takes; without one it takes no time.

    Raises:
        UnsupportedError: a drafter needs what no record, or not every one of these records, holds.
    """

    def __init__(
        self, records: Sequence[TextRecord], drafters: Sequence[Drafter], policy: Policy, cost: CostCurve | None = None
    ) -> None:
        for drafter in drafters:
            _check_needs(drafter, records)
        vocab_size = records[0].source.vocab_size
        context_length = max(record.source.context_length for record in records)
        config = EngineConfig(max_running=1, chunk_tokens=_WHOLE_PROMPT, prefix_tokens=0)
        super().__init__(RecordedTarget(vocab_size, context_length, cost), drafters, policy, config=config)
        self._records: dict[str, TextRecord] = {}
        self._sequences: dict[str, tuple[int, ...]] = {}

    def play(self, record: TextRecord, length: int | None = None) -> Played:
        """Run one text to its end.

        Args:
            record: the text.
            length: draft tokens a step at most; None for what the policy says.
        """
        params = SamplingParams(max_tokens=_limit(record), stop_token_ids=record.source.end_ids)
        expected = record.prediction if self.drafters.needs.prediction else None
        (request,) = self.submit(record.prompt, params, Speculation(length=length), prediction=expected)
        self._records[request.request_id] = record
        self._sequences[request.request_id] = record.prompt + record.output
        who: list[Provenance] = []
        try:
            while request.finish_reason is None:
                who += (writer for event in self.step() for writer in event.provenance)
        finally:
            self.abort(request)
            del self._records[request.request_id], self._sequences[request.request_id]
        if tuple(request.output) != record.output:
            raise RuntimeError(f"record {record.id} was played, but other tokens came out")
        return Played(request, tuple(place for place, writer in enumerate(who) if writer.accepted))

    def _judging(
        self, judged: Sequence[Item], proposals: Sequence[Proposal], outputs: ForwardOutputs
    ) -> tuple[BatchLaws, Coins]:
        texts = [self._sequences[item.request.request_id] for item in judged]
        return RecordedLaws(outputs.logits, judged, proposals), RecordedCoins(texts)

    def _observe(
        self,
        item: Item,
        segment: Segment,
        outputs: ForwardOutputs,
        kept: Kept,
        judged: Judged | None = None,
        base: int = 0,
    ) -> Mapping[str, float]:
        needs = self.drafters.needs
        seen = observe_rows(replace(needs, top_k=0), item, segment, outputs, kept, judged, base)
        record = self._records[item.request.request_id]
        if judged is not None and needs.top_k:
            tokens = [item.request.tokens[item.end - 1], *judged.proposal.tokens.tolist()]
            path = [0, *(1 + node for node in judged.result.nodes)]
            top, rows = runner_ups(record.top, item.end - len(record.prompt), tokens, path, needs.top_k)
            seen = replace(seen, top_tokens=top, row_tokens=rows)
        return self.drafters.observe(item.request.request_id, kept, seen)


def _limit(record: TextRecord) -> int:
    """Output tokens that the request may have: those of the live run, which shape its last drafts.

    A text that ended otherwise, as with a stop string, ends with its last token.
    """
    return record.max_tokens if record.output[-1] in record.source.end_ids else len(record.output)


def _check_needs(drafter: Drafter, records: Sequence[TextRecord]) -> None:
    if drafter.needs.hidden_layers:
        raise UnsupportedError(
            f"drafter {drafter.name} reads hidden layers of the target, which no record holds; run it with a model."
        )
    if drafter.needs.prediction and all(record.prediction is None for record in records):
        raise UnsupportedError(
            f"drafter {drafter.name} follows an expected text, and no record holds one; record with --predict-input or "
            "from prompts that have a prediction."
        )
    for record in records:
        if record.num_top < drafter.needs.top_k:
            raise UnsupportedError(
                f"drafter {drafter.name} reads the {drafter.needs.top_k} most probable tokens, record {record.id} "
                f"holds {record.num_top}; record with --runner-ups {drafter.needs.top_k}."
            )
