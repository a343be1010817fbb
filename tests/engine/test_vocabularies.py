"""A draft model whose head is wider or narrower than the target's drafts as well as one that fits, and changes nothing.

Written against vllm-project/vllm#7252, #5203 and #10913, huggingface/transformers#45307 (padded heads of one vocabulary
are refused or break), SafeAILab/EAGLE#222 and vllm-project/vllm-ascend PR 16166 (ids of a small vocabulary taken for
the target's).
"""

import pytest
import torch
from engine_helpers import PROMPT, VOCAB, Altered, assert_idle, decoder, engine, plain, run

from outrider.core.params import Rule, SamplingParams, Speculation
from outrider.drafters.draft_model import DraftModel
from outrider.models.base import ForwardInputs, Target
from outrider.policies.fixed import Fixed

COUNT = 24
PARAMS = SamplingParams(temperature=0.8, seed=6, max_tokens=COUNT)


class Padded(Altered):
    """A model with rows in its head that stand for no token; `logit` is what all of them say."""

    def __init__(self, target: Target, width: int, logit: float) -> None:
        super().__init__(target, self._widen)
        self.vocab_size, self._logit = width, logit

    def _widen(self, _inputs: ForwardInputs, logits: torch.Tensor) -> torch.Tensor:
        missing = self.vocab_size - logits.shape[1]
        return torch.nn.functional.pad(logits, (0, missing), value=self._logit)


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    ("target", "draft"),
    [
        (decoder(), Padded(decoder(), VOCAB + 64, 50.0)),
        (Padded(decoder(), VOCAB + 64, -1e4), decoder()),
        (Padded(decoder(), VOCAB + 3, -1e4), Padded(decoder(), VOCAB + 64, 50.0)),
    ],
    ids=["draft is wider", "target is wider", "both are padded"],
)
def test_padding_is_never_proposed_and_costs_no_acceptance(
    target: Target, draft: Target, temperature: float, rule: Rule
) -> None:
    params = SamplingParams(temperature=temperature, seed=6, max_tokens=COUNT)
    running = engine(target, [DraftModel(draft, target.vocab_size, num_tokens=VOCAB)], Fixed(4))
    request = run(running, PROMPT, params, Speculation(rule=rule))
    assert max(request.output) < VOCAB
    assert request.stats.accepted == request.stats.drafted - request.stats.discarded > COUNT // 2
    assert not running.drafters.num_failures
    if rule is Rule.MATCH or temperature == 0:
        assert request.output == plain(target, PROMPT, params)
    assert_idle(running)


def test_tokens_that_the_draft_does_not_know_are_said_all_the_same() -> None:
    running = engine(decoder(), [DraftModel(decoder(), VOCAB, num_tokens=20)], Fixed(4))
    request = run(running, PROMPT, PARAMS)
    expected = plain(decoder(), PROMPT, PARAMS)
    assert request.output == expected
    assert max(expected) >= 20 > min(expected)
    assert request.stats.accepted > 0
