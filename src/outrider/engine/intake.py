"""From a prompt and its settings to requests that can be queued, or to a refusal.

This module checks and builds; it queues nothing. Invariant: the requests that it gives can be served to their ends by
this engine, or fail by name.
"""

import itertools
import time
from collections.abc import Sequence

from outrider.core.coins import fresh_seed
from outrider.core.params import SamplingParams, Speculation
from outrider.core.process import MaskState
from outrider.drafters.ensemble import Ensemble
from outrider.engine.admission import check_order, check_prediction, check_prompt, check_sampling, check_speculation
from outrider.engine.request import Request
from outrider.engine.text import TextAssembler
from outrider.models.base import Target
from outrider.models.tokenizer import Tokenizer

__all__ = ["Intake"]


class Intake:
    """Makes the requests of one engine.

    Args:
        target: the model that serves them.
        drafters: drafters that they may ask for.
        tokenizer: writes their texts; None where nobody wants texts.
        end_ids: the model's own end-of-text tokens.

    Attributes:
        numbers: where the numbers in the requests' names come from; engines that are driven as one share them.
    """

    def __init__(
        self, target: Target, drafters: Ensemble, tokenizer: Tokenizer | None, end_ids: frozenset[int]
    ) -> None:
        self._target = target
        self._drafters = drafters
        self._tokenizer = tokenizer
        self._end_ids = end_ids
        self.numbers = itertools.count()

    def make(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        speculation: Speculation,
        *,
        mask: MaskState | None = None,
        prediction: Sequence[int] | None = None,
        priority: int = 0,
        deadline_seconds: float | None = None,
    ) -> list[Request]:
        """One request for each of a prompt's choices; the arguments are those of `Engine.submit`.

        Raises:
            InvalidRequestError: the request cannot be served as asked.
            UnsupportedError: the engine lacks what it needs.
        """
        vocab_size, context_length = self._target.vocab_size, self._target.context_length
        check_prompt(prompt, vocab_size, context_length)
        check_sampling(params, has_text=self._tokenizer is not None)
        check_speculation(speculation, self._drafters)
        if prediction is not None:
            check_prediction(prediction, vocab_size, context_length, self._drafters)
        check_order(priority, deadline_seconds)
        deadline = None if deadline_seconds is None else time.monotonic() + deadline_seconds
        seed = fresh_seed() if params.seed is None else params.seed
        number = next(self.numbers)
        requests = [
            Request(
                f"{number}-{choice}",
                prompt,
                params,
                speculation,
                vocab_size=vocab_size,
                context_length=context_length,
                end_ids=frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._end_ids),
                seed=seed,
                choice=choice,
                text=self._text(prompt, params),
                mask=mask,
                prediction=prediction,
                priority=priority,
                deadline=deadline,
            )
            for choice in range(params.n)
        ]
        for request in requests:
            request.siblings = requests
        return requests

    def _text(self, prompt: Sequence[int], params: SamplingParams) -> TextAssembler:
        decoder = self._tokenizer.stream() if self._tokenizer else None
        return TextAssembler(decoder, params.stop, prompt if params.echo else ())
