"""Whether two tokenizers mean the same by the same ids, so that one model can draft for another.

This module compares token strings. It does not know models; the width of a logits row is none of its business.
Invariant: equal size proves nothing; a pair that would draft nonsense is refused.
"""

import logging
from dataclasses import dataclass

from outrider.errors import UnsupportedModelError
from outrider.models.tokenizer.tokenizer import Tokenizer

__all__ = ["SharedVocabulary", "same_vocabulary"]

logger = logging.getLogger(__name__)

_MIN_COMMON = 0.9  # of the larger vocabulary; families add or drop a few hundred tokens between releases


@dataclass(frozen=True, slots=True)
class SharedVocabulary:
    """What two vocabularies have in common.

    Attributes:
        size: ids below this exist in both; a draft must not propose any other.
        different: special tokens below `size` that are not spelled alike, ascending.
    """

    size: int
    different: tuple[int, ...] = ()


def same_vocabulary(target: Tokenizer, draft: Tokenizer) -> SharedVocabulary:
    """Compare two vocabularies id by id.

    Sizes may differ, as where embeddings are padded or a release added tokens at the end, and special tokens may be
    spelled otherwise, which is warned of.

    Raises:
        UnsupportedModelError: an ordinary token means something else in the draft, or too few are common.
    """
    if target.fingerprint == draft.fingerprint:
        return SharedVocabulary(len(target.tokens))
    sizes = len(target.tokens), len(draft.tokens)
    size = min(sizes)
    if size < _MIN_COMMON * max(sizes):
        raise UnsupportedModelError(
            f"The vocabularies of target and draft model have {sizes[0]} and {sizes[1]} tokens "
            "and do not belong together; use a draft model with the target's tokenizer."
        )
    pairs = enumerate(zip(target.tokens, draft.tokens, strict=False))
    different = tuple(token_id for token_id, (ours, theirs) in pairs if ours != theirs and None not in (ours, theirs))
    _refuse_ordinary(target, draft, different)
    if different:
        names = ", ".join(f"{target.tokens[i]!r}/{draft.tokens[i]!r}" for i in different[:3])
        logger.warning("target and draft model spell %d special tokens differently (%s)", len(different), names)
    return SharedVocabulary(size, different)


def _refuse_ordinary(target: Tokenizer, draft: Tokenizer, different: tuple[int, ...]) -> None:
    """Refuse a difference in a token that is not special on both sides."""
    both_added = target.added_ids & draft.added_ids
    ordinary = [token_id for token_id in different if token_id not in both_added]
    if ordinary:
        first = ordinary[0]
        raise UnsupportedModelError(
            f"The draft model has another vocabulary than the target: {len(ordinary)} ordinary tokens differ "
            f"(id {first} is {target.tokens[first]!r} in the target and {draft.tokens[first]!r} in the draft); "
            "use a draft model with the target's tokenizer."
        )
