"""Plain decoding without cache, drafts or batches: slow, obvious, and what every fast path is compared with."""

from collections.abc import Iterable, Sequence

import numpy as np

from outrider.core.coins import At, BatchCoins, Stream, choice_seed, fresh_seed
from outrider.core.params import SamplingParams
from outrider.core.process import History, MaskState, Processor
from outrider.errors import GenerationError
from outrider.models.base import ForwardInputs, Segment, Target

__all__ = ["reference_generate"]


def reference_generate(
    target: Target,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    end_ids: Iterable[int] = (),
    choice: int = 0,
    mask: MaskState | None = None,
) -> list[int]:
    """Output tokens of plain decoding; every pass reads the whole sequence anew.

    Args:
        target: the model.
        prompt: token ids.
        params: how tokens are drawn and when they end; stop strings are not looked for.
        end_ids: the model's own end-of-text tokens.
        choice: which of the `n` outputs.
        mask: outside mask at the start of the output.

    Raises:
        GenerationError: the logits are not finite or every token is banned.
    """
    ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(end_ids))
    processor = Processor(params, target.vocab_size, ends)
    state = processor.start(History(list(prompt)), mask)
    coins = BatchCoins([Stream(choice_seed(fresh_seed() if params.seed is None else params.seed, choice), 0)])
    limit = target.context_length - len(prompt)
    limit = limit if params.max_tokens is None else min(limit, params.max_tokens)
    output: list[int] = []
    while len(output) < limit:
        tokens = [*prompt, *output]
        law = processor.law(_next_logits(target, tokens), [state])
        if not np.isfinite(float(law[0, 0])):
            raise GenerationError(f"the logits of output token {len(output)} are not finite or every token is banned.")
        row = np.zeros(1, dtype=np.int64)
        token = int(coins.sample(law, At(row, row - 1, row + len(tokens)))[0])
        output.append(token)
        state = state.child(token)
        if token in ends:
            break
    return output


def _next_logits(target: Target, tokens: Sequence[int]) -> object:
    cache = target.make_cache()
    slot = cache.acquire()
    cache.reserve(slot, len(tokens))
    inputs = ForwardInputs(
        token_ids=np.asarray(tokens, dtype=np.int64),
        positions=np.arange(len(tokens)),
        segments=[Segment(slot, 0, len(tokens), 0)],
        logits_rows=np.asarray([len(tokens) - 1]),
    )
    return target.forward(inputs, cache).logits
