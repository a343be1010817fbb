"""Whether a model may draft for a target, and the drafter that comes of it.

This module compares vocabularies; it knows neither files nor how tokens are drawn. Invariant: a pair that is let
through means the same text by the same id, so that a draft can only be refused by the target's judgement, never by a
mix-up of ids. (Equal size proves nothing and different padding disproves nothing: ggml-org/llama.cpp#3812,
vllm-project/vllm#7252.)
"""

from typing import TYPE_CHECKING, Protocol

from outrider.drafters.draft_model import DraftModel
from outrider.errors import UnsupportedError, UnsupportedModelError
from outrider.models.base import Target

if TYPE_CHECKING:
    from outrider.models.tokenizer import Tokenizer

__all__ = ["Loaded", "build_draft_model"]


class Loaded(Protocol):
    """What is needed of a loaded model."""

    @property
    def name(self) -> str:
        """The name it was asked for by."""

    @property
    def target(self) -> Target:
        """The model."""

    @property
    def tokenizer(self) -> "Tokenizer":
        """Its tokenizer."""


def build_draft_model(
    draft: Loaded,
    target: Loaded,
    *,
    min_confidence: float = 0.0,
    chunk: int = 512,
    max_tokens: int | None = None,
    name: str = "draft_model",
) -> DraftModel:
    """Make the drafter of a pair.

    Args:
        draft: the loaded draft model.
        target: the loaded target.
        min_confidence: nothing is drawn after a node whose path is less probable than this.
        chunk: prompt tokens that a call reads at most.
        max_tokens: rows of the draft cache over all requests; None for no bound but memory.
        name: what plans, statistics and provenance call it.

    Raises:
        UnsupportedError: the tokenizers differ; the sentence names both models.
    """
    from outrider.models.tokenizer import same_vocabulary

    try:
        shared = same_vocabulary(target.tokenizer, draft.tokenizer)
    except UnsupportedModelError as error:
        reason = str(error)
        raise UnsupportedError(
            f"{draft.name!r} cannot draft for {target.name!r}: {reason[:1].lower()}{reason[1:]}"
        ) from error
    return DraftModel(
        draft.target,
        target.target.vocab_size,
        num_tokens=shared.size,
        min_confidence=min_confidence,
        chunk=chunk,
        max_tokens=max_tokens,
        name=name,
    )
