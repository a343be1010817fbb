"""The tokens that a draft model may propose where it may not propose all: chosen by their frequency, written and read.

The head of a small model is a large part of what its pass reads, and most tokens of its vocabulary stand in few texts.
This module knows ids and spellings; it knows neither models nor how tokens are drawn. Invariants: ids come from a file
and from nowhere else, never from a slice that nobody chose; the same texts give the same file; a file whose spellings
are those of another vocabulary is refused.

Published trouble that this file is written against: ids of the draft taken for those of the target
(vllm-project/vllm-ascend#16166), a slice in place of a missing map (verl-project/verl-SpeCo#66).
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from outrider.errors import InvalidRequestError

if TYPE_CHECKING:
    from outrider.models.tokenizer import Tokenizer

__all__ = ["Choice", "choose_tokens", "read_vocabulary", "write_vocabulary"]

_REMEDY = "make one with `outrider models vocabulary`"


class Choice(NamedTuple):
    """Tokens that were chosen.

    Attributes:
        ids: special tokens, then the others by falling frequency.
        num_tokens: tokens of the texts.
        num_covered: of these, tokens that were chosen.
    """

    ids: list[int]
    num_tokens: int
    num_covered: int


def choose_tokens(texts: Iterable[str], tokenizer: "Tokenizer", size: int) -> Choice:
    """Take a vocabulary's special tokens and those that texts use most.

    Equally frequent ones, unused ones among them, are taken by their number: vocabularies of merged pairs number
    frequent merges first.

    Args:
        texts: texts like those to come.
        tokenizer: whose vocabulary it is.
        size: tokens wanted.

    Raises:
        InvalidRequestError: the vocabulary has no room for so many or so few, or the texts are empty.
    """
    counts: Counter[int] = Counter()
    for text in texts:
        counts.update(tokenizer.encode(text, add_special=False))
    if not counts:
        raise InvalidRequestError("the texts hold no tokens; give texts like those that the model will write.")
    special = sorted(tokenizer.special_ids)
    known = [token for token, spelling in enumerate(tokenizer.tokens) if spelling is not None]
    if not len(special) < size <= len(known):
        raise InvalidRequestError(
            f"size is {size}, but the vocabulary has {len(known)} tokens, {len(special)} of them special; "
            f"give a number from {len(special) + 1} to {len(known)}."
        )
    others = sorted(set(known).difference(special), key=lambda token: (-counts[token], token))
    ids = [*special, *others[: size - len(special)]]
    return Choice(ids, counts.total(), sum(counts[token] for token in ids))


def write_vocabulary(path: Path, ids: Iterable[int], tokenizer: "Tokenizer") -> None:
    """Write tokens as an object of JSON, spelling to id, like a `vocab.json` that lacks some.

    Raises:
        InvalidRequestError: the file cannot be written.
    """
    spelled = {tokenizer.tokens[token]: token for token in ids}
    try:
        path.write_text(json.dumps(spelled, indent=0) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be written ({error.strerror}); give another --output.") from error


def read_vocabulary(path: Path, tokenizer: "Tokenizer") -> list[int]:
    """Read the ids of a file.

    Args:
        path: an object of JSON, spelling to id, or a list of ids.
        tokenizer: the target's.

    Raises:
        InvalidRequestError: the file cannot be read, holds something else or nothing, names an id twice or one that
            the target lacks, or spells a token otherwise than the target does.
    """
    values = _read(path)
    ids = list(values.values()) if isinstance(values, dict) else values
    if not isinstance(ids, list) or not ids:
        raise InvalidRequestError(f"vocabulary {path} holds no tokens; {_REMEDY}.")
    size = len(tokenizer.tokens)
    for token in ids:
        if type(token) is not int or not 0 <= token < size:
            raise InvalidRequestError(
                f"vocabulary {path} names the token {token!r:.40}, but the target's ids are 0 to {size - 1}; {_REMEDY}."
            )
    if len(set(ids)) < len(ids):
        twice = Counter(ids).most_common(1)[0][0]
        raise InvalidRequestError(f"vocabulary {path} names the token {twice} twice; name each once.")
    if isinstance(values, dict):
        _check_spelling(path, values, tokenizer)
    return ids


def _check_spelling(path: Path, ids: dict[str, int], tokenizer: "Tokenizer") -> None:
    """Refuse another vocabulary; releases of one may spell added tokens differently."""
    for spelling, token in ids.items():
        ours = tokenizer.tokens[token]
        if spelling != ours and token not in tokenizer.added_ids:
            raise InvalidRequestError(
                f"vocabulary {path} is of another vocabulary than the target's: token {token} is {spelling!r} there "
                f"and {ours!r} in the target; {_REMEDY}."
            )


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequestError(f"vocabulary {path} cannot be read ({error.strerror}); {_REMEDY}.") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"vocabulary {path} is no JSON ({error}); {_REMEDY}.") from error
