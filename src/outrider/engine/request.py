"""One request: its committed tokens, when it ends, and what of a verdict becomes part of it.

A request does not know the cache, the models or the other requests. Invariant: `tokens` holds committed tokens only,
prompt first, and never more of them than `max_tokens` and the context allow; `history` and `text` have seen exactly
these.
"""

from collections.abc import Sequence

from outrider.core.coins import Stream, choice_seed
from outrider.core.fit import default_draw
from outrider.core.params import Draw, Rule, SamplingParams, Speculation
from outrider.core.process import History, MaskState, PathState, Processor
from outrider.core.types import FinishReason, Kept, Proposal, VerifyResult
from outrider.engine.stats import SpecStats
from outrider.engine.text import TextAssembler

__all__ = ["Request"]


class Request:
    """A sequence being generated.

    Args:
        request_id: unique among the engine's requests.
        prompt: token ids, at least one.
        params: how tokens are drawn and when the request ends.
        speculation: how it may be speculated on.
        vocab_size: width of the target's logits.
        context_length: positions that the target can hold.
        end_ids: tokens that end the output: the model's own, unless ignored, and the request's.
        seed: the request's seed.
        choice: which of its `n` outputs this is.
        text: where the text goes.
        mask: outside mask (a grammar) at the start of the output.
        prediction: the output that the caller expects, as tokens.
        priority: requests with a higher one go first.
        deadline: when the request ends unfinished, on the clock of `time.monotonic`; None for never.

    Attributes:
        round: judged passes so far; keys the noise of the law-exact rules and survives preemption.
        slot: cache slot while the request runs, else None.
        siblings: all requests of one `submit`, this one among them: they have the same prompt.
        stats: what speculation did for this request.
        number: place in the order of arrival.
        num_passed: requests that came later and were admitted before it.
        num_reused: rows that its last admission took over from other requests instead of reading them.
        num_prompt_reused: the same of the last admission before its first token: prompt tokens that were cached.
    """

    def __init__(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams,
        speculation: Speculation,
        *,
        vocab_size: int,
        context_length: int,
        end_ids: frozenset[int],
        seed: int,
        choice: int = 0,
        text: TextAssembler,
        mask: MaskState | None = None,
        prediction: Sequence[int] | None = None,
        priority: int = 0,
        deadline: float | None = None,
    ) -> None:
        self.request_id = request_id
        self.params = params
        self.speculation = speculation
        self.tokens = list(prompt)
        self.num_prompt = len(self.tokens)
        self.prediction = None if prediction is None else list(prediction)
        self.seed = seed
        self.choice = choice
        self.mask = self._mask = mask
        self._noise_seed = choice_seed(seed, choice)
        self.end_ids = end_ids
        self.text = text
        self.round = 0
        self.slot: int | None = None
        self.siblings: Sequence[Request] = ()
        self.priority, self.deadline = priority, deadline
        self.number = self.num_passed = self.num_reused = self.num_prompt_reused = 0
        self.stats = SpecStats()
        self.finish_reason: FinishReason | None = None
        self.processor = Processor(params, vocab_size, end_ids)
        self._history = History(self.tokens)
        self.asks_for_best = (
            speculation.rule is Rule.MATCH and params.logprobs is None and mask is None and self.processor.takes_largest
        )
        self.max_length = context_length
        if params.max_tokens is not None:
            self.max_length = min(context_length, self.num_prompt + params.max_tokens)

    @property
    def state(self) -> PathState:
        """All that the law after the committed tokens depends on."""
        return self.processor.start(self._history, self._mask)

    @property
    def num_output(self) -> int:
        """Tokens emitted so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def output(self) -> list[int]:
        """The emitted tokens."""
        return self.tokens[self.num_prompt :]

    @property
    def max_draft(self) -> int:
        """Draft tokens that can still be of use: one token less than may still be emitted."""
        return max(0, self.max_length - len(self.tokens) - 1)

    @property
    def draw(self) -> Draw:
        """How a model drafter draws for this request: as asked, else what the rule accepts most of."""
        if self.speculation.draw is not None:
            return self.speculation.draw
        return default_draw(self.speculation.rule, is_tree=self.speculation.tree is not None)

    @property
    def stream(self) -> Stream:
        """The request's noise for its present round."""
        return Stream(self._noise_seed, self.round)

    def commit(self, result: VerifyResult, proposal: Proposal) -> Kept:
        """Make the verdict part of the request, up to the first stop or limit.

        Args:
            result: a verdict; an "invalid" one has accepted nodes but no token after them.
            proposal: the proposal it is about.

        Returns:
            What was really kept; with the finish reason if this ended the request.
        """
        self.round += 1
        block = [int(proposal.tokens[node]) for node in result.nodes]
        if result.ended != "invalid":
            block.append(result.next_token)
        emitted: list[int] = []
        for token in block:
            emitted.append(token)
            self._append(token)
            if self.finish_reason is not None:
                break
        return Kept(
            tokens=tuple(emitted),
            nodes=result.nodes[: len(emitted) - 1],
            num_accepted=min(len(emitted), len(result.nodes)),
            finish_reason=self.finish_reason,
        )

    def finish(self, reason: FinishReason) -> None:
        """End the request for a reason outside its tokens."""
        self.finish_reason = reason
        self.text.finish()

    def _append(self, token: int) -> None:
        self.tokens.append(token)
        if self._mask is not None:
            self._mask = self._mask.child(token)
        self._history.append(token)
        if token in self.end_ids or self.text.push(token, watch=self.num_output >= self.params.min_tokens):
            self._end("stop", stopped=True)
        elif len(self.tokens) >= self.max_length:
            self._end("length")

    def _end(self, reason: FinishReason, *, stopped: bool = False) -> None:
        self.finish_reason = reason
        self.text.finish(stopped=stopped)
