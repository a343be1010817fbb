"""The loop: draft, run the target once, verify, commit, for every scheduled request.

The engine is glue. How a token is drafted, judged, drawn or cached is decided below it; it only hands one part's
answer to the next. Invariants: between two steps a request's cache slot holds exactly its committed tokens but the
last (while its prompt is being read: a prefix of them); commit comes before the cache keeps anything, so nothing
uncommitted is ever cached, observed or counted.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from outrider.core.coins import BatchCoins, Coins
from outrider.core.params import SamplingParams, Speculation
from outrider.core.process import MaskState
from outrider.core.steps import STEPS, Steps
from outrider.core.types import Kept, Proposal, TokenEvent
from outrider.core.verify import verify
from outrider.drafters.base import Drafter
from outrider.drafters.ensemble import Ensemble
from outrider.engine.admission import check_policy
from outrider.engine.batch import BatchLaws, asks_for_best, pack, trim
from outrider.engine.config import EngineConfig
from outrider.engine.intake import Intake
from outrider.engine.judged import Judged, observe_rows
from outrider.engine.memory import Memory, plan_memory
from outrider.engine.outbox import Outbox, TextEvent
from outrider.engine.request import Request
from outrider.engine.scheduler import Item, Scheduler
from outrider.engine.shadow import Shadow
from outrider.engine.stats import SpecStats
from outrider.engine.views import draft, request_view
from outrider.models.base import ForwardOutputs, Segment, Target, tells_best
from outrider.models.tokenizer import Tokenizer
from outrider.policies.base import Policy, RequestView, Shape
from outrider.policies.fixed import Fixed

__all__ = ["Engine"]

_NOTHING = Kept(tokens=(), nodes=(), num_accepted=0)


class Engine:
    """Exact speculative generation for one target.

    Args:
        target: the model whose law is served.
        drafters: drafters that plans may name.
        policy: decides how to speculate; by default a fixed length with all drafters.
        tokenizer: needed for text and stop strings; None serves tokens only.
        end_ids: the model's own end-of-text tokens.
        params: how tokens are drawn where a request does not say; greedy by default.
        config: limits.

    Attributes:
        steps: the steps that rules and trimming are made of; an audit plants a fault here, nobody else changes them.
        shadow: second runs of finished requests, see `run_shadow`.
    """

    steps: Steps = STEPS

    def __init__(
        self,
        target: Target,
        drafters: Sequence[Drafter] = (),
        policy: Policy | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        end_ids: Iterable[int] = (),
        params: SamplingParams | None = None,
        config: EngineConfig | None = None,
    ) -> None:
        self.target = target
        self.tokenizer = tokenizer
        self.end_ids = frozenset(end_ids)
        self.params = params or SamplingParams()
        self.config = config or EngineConfig()
        self.drafters = Ensemble(drafters)
        self.policy = policy or Fixed()
        check_policy(self.policy, self.drafters)
        self._tells_best = tells_best(target)
        self._plan = plan_memory(target, self.drafters.members, self.config)
        self.config = replace(self.config, cache_tokens=self._plan.cache_tokens)
        self.drafters.load(self.config.cache_tokens, self.config.prefix_tokens)
        self.cache = target.make_cache(self.config.cache_tokens)
        self.scheduler = Scheduler(self.cache, self.config)
        self.stats = SpecStats()
        self.shadow = Shadow(self.config.shadow, self.config.shadow_waiting, self._without_speculation)
        self.step_seconds = 0.0
        self._requests: dict[str, Request] = {}
        self._followed: set[str] = set()
        self._outbox = Outbox()
        self._intake = Intake(target, self.drafters, tokenizer, self.end_ids)
        self._gate = threading.Lock()  # between steps and aborts of other threads
        self._is_stepping = False
        self._leaving: list[Request] = []

    # -- requests ------------------------------------------------------------------------------------------------------

    def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams | None = None,
        speculation: Speculation | None = None,
        *,
        mask: MaskState | None = None,
        prediction: Sequence[int] | None = None,
        priority: int = 0,
        deadline_seconds: float | None = None,
    ) -> list[Request]:
        """Queue a prompt; one request for each of its `n` choices.

        Args:
            prompt: token ids.
            params: how tokens are drawn and when they end; None takes the engine's own.
            speculation: how the request may be speculated on.
            mask: outside mask (a grammar) at the start of the output.
            prediction: the output that the caller expects, as token ids; drafts only, it never changes the text.
            priority: requests with a higher one go first; among equals an earlier deadline, then who came first. No
                request is passed by more than 32 later ones.
            deadline_seconds: it ends with an error if it is unfinished so long after this call; None for never.

        Raises:
            InvalidRequestError: the request cannot be served as asked; nothing is queued.
            UnsupportedError: the engine lacks what it needs; nothing is queued.
        """
        requests = self._intake.make(
            prompt,
            params or self.params,
            speculation or Speculation(),
            mask=mask,
            prediction=prediction,
            priority=priority,
            deadline_seconds=deadline_seconds,
        )
        for request in requests:
            self.enqueue(request)
        return requests

    def enqueue(self, request: Request) -> None:
        """Queue a request that stands already: a choice of a prompt, or the second run of one."""
        self._requests[request.request_id] = request
        self.scheduler.add(request)

    def abort(self, request: Request) -> None:
        """End a request now, wherever it is; its slot and all drafter state are free at once.

        Note:
            Within a step (from a drafter, a policy, a callback) it takes hold before that step commits anything of the
            request. From another thread while a step runs it takes hold at the end of that step at the latest; this is
            the only verb that another thread may call.
        """
        with self._gate:
            if self._is_stepping:
                self._leaving.append(request)
            else:
                self._leave(request)

    def _leave(self, request: Request) -> None:
        if request.request_id in self._requests:
            request.finish("abort")
            self._forget(request)
            self._deliver(request, TokenEvent(request.request_id, (), (), finish_reason="abort"))

    def memory(self) -> Memory:
        """What the engine takes of memory, part by part: now, and at most."""
        return self._plan.now(self.cache, self.drafters.members)

    def forget_prefixes(self, scope: str | None = None) -> None:
        """Give back the rows that are kept of finished requests, of one scope or of all."""
        self.scheduler.prefixes.clear(scope)
        self.drafters.forget_prefixes(scope)

    @property
    def num_unfinished(self) -> int:
        """Requests that wait or run."""
        return len(self._requests)

    # -- the loop ------------------------------------------------------------------------------------------------------

    def step(self) -> list[TokenEvent]:
        """Draft, run the target once, verify, commit, for every scheduled request."""
        with self._gate:
            self._is_stepping = True
        try:
            return self._step()
        finally:
            with self._gate:
                self._is_stepping = False
                while self._leaving:
                    self._leave(self._leaving.pop())

    def _step(self) -> list[TokenEvent]:
        started = time.perf_counter()
        events = [self._expire(request) for request in self.scheduler.expired(time.monotonic())]
        items = self._schedule()
        events += [self._refuse(request) for request in self.scheduler.refused]
        if not items:
            return events
        try:
            events += self._run(items)
        except BaseException:
            self._requeue(items)
            raise
        self.step_seconds += time.perf_counter() - started
        return events

    def _run(self, items: Sequence[Item]) -> list[TokenEvent]:
        """Everything of a step that works on tensors."""
        judged = [item for item in items if item.is_judged]
        views = [request_view(item, self.drafters.names) for item in judged]
        plans = self.policy.choose(views)
        proposals = self._trim(draft(self.drafters.propose, judged, plans), views)

        needs = self.drafters.needs
        only_best = self._tells_best and asks_for_best(judged, needs, self.steps)
        inputs = pack(items, proposals, needs.hidden_layers, only_best=only_best)
        outputs = self.target.forward(inputs, self.cache)
        laws, coins = self._judging(judged, proposals, outputs)
        results = verify(
            [item.request.speculation.rule for item in judged],
            laws,
            proposals,
            coins,
            [len(item.request.tokens) for item in judged],
            self.steps,
        )

        events: list[TokenEvent] = []
        verdicts = map(Judged, judged, plans, proposals, results, range(len(judged)))
        for item, segment in zip(items, inputs.segments, strict=True):
            verdict = next(verdicts) if item.is_judged else None
            if item.request in self._leaving:
                self.cache.keep(item.slot, item.num_cached, ())
            elif verdict is not None:
                events.append(self._conclude(verdict, segment, outputs, laws, len(inputs.token_ids)))
            else:
                self.cache.keep(item.slot, item.end, ())
                self._observe(item, segment, outputs, _NOTHING)
        return events

    def _judging(
        self, judged: Sequence[Item], proposals: Sequence[Proposal], outputs: ForwardOutputs
    ) -> tuple[BatchLaws, Coins]:
        """What the rules ask in this step: the target's laws, and the requests' own noise."""
        laws = BatchLaws(outputs.logits, judged, proposals, outputs.best)
        return laws, BatchCoins([item.request.stream for item in judged])

    def _requeue(self, items: Sequence[Item]) -> None:
        """After a step that broke off: nothing that it wrote is trusted, its requests read their texts anew."""
        for item in reversed(items):
            request = item.request
            if request.finish_reason is not None:
                self._forget(request, keep=False)
            elif request.slot is not None:
                self.scheduler.preempt(request)
                self._unfollow(request)

    def _schedule(self) -> list[Item]:
        items = self.scheduler.schedule()
        for request in self.scheduler.preempted:
            self._unfollow(request)
        for item in items:
            request = item.request
            if request.request_id not in self._followed:
                self._followed.add(request.request_id)
                self.drafters.begin(request.request_id, request.tokens)
        return items

    def _unfollow(self, request: Request) -> None:
        self._followed.discard(request.request_id)
        self.drafters.drop(request.request_id)

    def _trim(self, proposals: list[Proposal], views: Sequence[RequestView]) -> list[Proposal]:
        if not any(proposal.num_nodes for proposal in proposals):
            return proposals
        shapes = [Shape(proposal.parents, proposal.confidence, proposal.draw) for proposal in proposals]
        admitted = self.policy.admit(shapes, views)
        return [trim(*parts, self.steps) for parts in zip(proposals, admitted, views, strict=True)]

    def _conclude(
        self, judged: Judged, segment: Segment, outputs: ForwardOutputs, laws: BatchLaws, num_rows: int
    ) -> TokenEvent:
        """Commit one verdict, keep its rows, tell drafters, policy and statistics."""
        item, request = judged.item, judged.item.request
        if judged.result.ended == "invalid" and not judged.result.nodes:  # else they count, and the next pass fails
            return self._fail(
                request,
                f"the logits of output token {request.num_output} are not finite or every token is banned; "
                "check the weights, logit_bias, bad_words and the mask.",
            )
        kept = request.commit(judged.result, judged.proposal)
        self.cache.keep(item.slot, item.end, kept.nodes)
        scores = self._observe(item, segment, outputs, kept, judged, laws.bases[judged.number])
        outcome = judged.outcome(
            kept,
            scores,
            draft_seconds=self.drafters.seconds.get(request.request_id, 0.0),
            verify_seconds=outputs.seconds,
            rows=segment.num_rows,
            pass_rows=num_rows,
        )
        self.policy.update(outcome)
        self.stats.record(outcome)
        request.stats.record(outcome)
        provenance, logprobs = judged.provenance(kept), judged.logprobs(kept, laws)
        if kept.finish_reason is not None:
            self._forget(request)
            self.shadow.consider(request)
        event = TokenEvent(request.request_id, kept.tokens, provenance, logprobs, kept.finish_reason)
        return self._deliver(request, event)

    def _observe(
        self,
        item: Item,
        segment: Segment,
        outputs: ForwardOutputs,
        kept: Kept,
        judged: Judged | None = None,
        base: int = 0,
    ) -> Mapping[str, float]:
        if not self.drafters.names:
            return {}
        observation = observe_rows(self.drafters.needs, item, segment, outputs, kept, judged, base)
        return self.drafters.observe(item.request.request_id, kept, observation)

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _refuse(self, request: Request) -> TokenEvent:
        return self._fail(
            request,
            f"{len(request.tokens)} tokens do not fit the cache of {self.config.cache_tokens} tokens; "
            "raise cache_tokens or shorten the prompt.",
        )

    def _expire(self, request: Request) -> TokenEvent:
        return self._fail(
            request,
            f"the deadline passed after {request.num_output} output tokens; allow more time or ask for fewer tokens.",
            keep=True,
        )

    def _fail(self, request: Request, message: str, *, keep: bool = False) -> TokenEvent:
        request.finish("error")
        self._forget(request, keep=keep)
        return self._deliver(request, TokenEvent(request.request_id, (), (), (), "error", message))

    def _forget(self, request: Request, *, keep: bool = True) -> None:
        self.scheduler.remove(request, keep=keep)
        self._requests.pop(request.request_id, None)
        if request.request_id in self._followed:
            self._followed.remove(request.request_id)
            self.drafters.end(request.request_id)
        self.policy.forget(request.request_id)

    # -- second runs ---------------------------------------------------------------------------------------------------

    def run_shadow(self) -> bool:
        """Do one pass of the second run of a finished request (`EngineConfig.shadow`), if no request is unfinished.

        Whoever drives the engine calls it while there is nothing else to do; `shadow.stats` has the counts.

        Returns:
            Whether there is more to do.
        """
        return not self.num_unfinished and self.shadow.step()

    def _without_speculation(self) -> "Engine":
        rows = 2 * self.target.context_length  # one text, and the end of its last block
        config = replace(self.config, max_running=1, shadow=0.0, cache_tokens=rows, prefix_tokens=0, memory=None)
        return Engine(self.target, tokenizer=self.tokenizer, end_ids=self.end_ids, config=config)

    # -- text ----------------------------------------------------------------------------------------------------------

    def stream(self, requests: Sequence[Request]) -> Iterator[TextEvent]:
        """Run steps and give the text of the requests as it becomes final, a chunk for each of their steps.

        A consumer that leaves early frees the slots: whatever of the requests is unfinished is aborted.
        """
        self._outbox.open(requests)
        try:
            while self._outbox.has_any(requests) or any(r.request_id in self._requests for r in requests):
                if not self._outbox.has_any(requests):
                    self.step()
                yield from self._outbox.drain(requests)
        finally:
            for request in requests:
                self.abort(request)
            self._outbox.close(requests)

    def _deliver(self, request: Request, event: TokenEvent) -> TokenEvent:
        self._outbox.deliver(request, event)
        return event
