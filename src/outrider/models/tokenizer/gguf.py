"""A tokenizer from the metadata of a GGUF file.

This module knows how GGUF files write byte-level vocabularies down and how each named pre-tokenizer cuts text. It does
not read files; SentencePiece vocabularies are left to transformers. Invariant: ids are those of the model's own
`tokenizer.json`; a pre-tokenizer that is not known is refused, since a wrong one gives wrong ids without any error.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.errors import DamagedModelError, UnsupportedModelError
from outrider.models.tokenizer.chat import ChatTemplate
from outrider.models.tokenizer.tokenizer import SpecialTokens, Tokenizer

if TYPE_CHECKING:
    import tokenizers

__all__ = ["tokenizer_from_gguf"]

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # tokenizer.ggml.token_type
_ROLE_KEYS = {"bos": "bos_token_id", "eos": "eos_token_id", "pad": "padding_token_id", "unk": "unknown_token_id"}
_END_KEYS = ("eot_token_id", "eom_token_id")

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORDS = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"


@dataclass(frozen=True, slots=True)
class _Cutting:
    """How text is cut before merges apply.

    Attributes:
        pattern: regular expression of the pieces; None for the byte-level default (GPT-2's).
        single_digits: digits stand alone.
        compose: normalise text to composed characters (NFC) first.
        whole_words: a piece that is a token is taken whole, whatever the merges say.
        add_bos: prompts begin with the beginning-of-text token where the file says nothing.
    """

    pattern: str | None = None
    single_digits: bool = False
    compose: bool = False
    whole_words: bool = False
    add_bos: bool = False


_LLAMA3 = _Cutting(rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}", whole_words=True, add_bos=True)
_CUTTINGS: dict[str, _Cutting] = {
    "gpt-2": _Cutting(),
    "smollm": _Cutting(single_digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _Cutting(rf"{_WORDS}|\p{{N}}|{_REST}", compose=True),
    "deepseek-r1-qwen": _Cutting(rf"{_WORDS}|\p{{N}}|{_REST}"),
    "tekken": _Cutting(
        rf"{_CASED_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        whole_words=True,
        add_bos=True,
    ),
}


def tokenizer_from_gguf(metadata: Mapping[str, Any], path: Path) -> Tokenizer:
    """Build the tokenizer of a GGUF file.

    Args:
        metadata: key -> value of the file.
        path: the file, for messages and for transformers.

    Raises:
        UnsupportedModelError: a vocabulary or pre-tokenizer that is not known.
        DamagedModelError: the vocabulary is incomplete or lacks a special token.
    """
    values = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    kind = values.get("model")
    if kind == "gpt2":
        cutting = _cutting(values.get("pre"), path)
        backend, add_bos = _byte_level(values, cutting, path), cutting.add_bos
    elif kind == "llama":
        backend, add_bos = _sentencepiece(path), True
    else:
        raise UnsupportedModelError(
            f"The file {path} holds a vocabulary of kind {kind!r}; "
            "supported are gpt2 (byte-level) and llama (SentencePiece)."
        )
    special = {role: values[key] for role, key in _ROLE_KEYS.items() if key in values}
    _check_ids(values, path)
    return Tokenizer(
        backend,
        SpecialTokens(**special),
        add_bos=bool(values.get("add_bos_token", add_bos)),
        chat_template=_template(metadata, values["tokens"], special),
    )


def _check_ids(values: Mapping[str, Any], path: Path) -> None:
    """Refuse special tokens that the vocabulary does not have."""
    size = len(values["tokens"])
    for key in (*_ROLE_KEYS.values(), *_END_KEYS):
        value = values.get(key, 0)
        if not isinstance(value, int) or not 0 <= value < size:
            raise DamagedModelError(
                f"The file {path}: tokenizer.ggml.{key} is {value!r}; the vocabulary has the tokens 0 to {size - 1}, "
                "so correct it or fetch the file again."
            )


def _cutting(name: str | None, path: Path) -> _Cutting:
    """The pre-tokenizer of a name."""
    if name not in _CUTTINGS:
        raise UnsupportedModelError(
            f"The file {path} asks for the pre-tokenizer {name!r}; supported are {', '.join(sorted(_CUTTINGS))}."
        )
    return _CUTTINGS[name]


def _byte_level(values: Mapping[str, Any], cutting: _Cutting, path: Path) -> "tokenizers.Tokenizer":
    """A byte-level BPE from tokens, merges and token types."""
    from tokenizers import AddedToken, decoders, models, normalizers
    from tokenizers import Tokenizer as Backend

    try:
        tokens, types = values["tokens"], values["token_type"]
        merges = [tuple(merge.split(" ", 1)) for merge in values["merges"]]
        named = list(zip(tokens, types, strict=True))
        vocabulary = {token: i for i, (token, kind) in enumerate(named) if kind != _UNUSED}
        backend = Backend(models.BPE(vocabulary, merges, ignore_merges=cutting.whole_words))
    except Exception as error:  # the library raises the bare class
        raise DamagedModelError(f"The vocabulary of {path} cannot be read ({error}); fetch the file again.") from error
    if cutting.compose:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _pre_tokenizer(cutting)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False) for token, kind in named if kind == _CONTROL])
    backend.add_tokens([AddedToken(token, normalized=False) for token, kind in named if kind == _USER_DEFINED])
    return backend


def _pre_tokenizer(cutting: _Cutting) -> "tokenizers.pre_tokenizers.PreTokenizer":
    """Cut text into pieces and spell their bytes as letters."""
    from tokenizers import Regex, pre_tokenizers

    steps: list[pre_tokenizers.PreTokenizer] = []
    if cutting.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if cutting.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(cutting.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cutting.pattern is None))
    return pre_tokenizers.Sequence(steps)


def _sentencepiece(path: Path) -> "tokenizers.Tokenizer":
    """Let transformers rebuild a SentencePiece vocabulary."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
        backend: tokenizers.Tokenizer = tokenizer.backend_tokenizer
    except Exception as error:
        detail = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UnsupportedModelError(
            f"The SentencePiece vocabulary of {path} cannot be rebuilt ({detail}); use the model's safetensors folder."
        ) from error
    return backend


def _template(metadata: Mapping[str, Any], tokens: list[str], special: Mapping[str, int]) -> ChatTemplate | None:
    """The chat template of the file, or None."""
    keys = {"default": "tokenizer.chat_template", "tool_use": "tokenizer.chat_template.tool_use"}
    sources = {name: metadata[key] for name, key in keys.items() if key in metadata}
    if "default" not in sources:
        return None
    return ChatTemplate(sources, {f"{role}_token": tokens[token_id] for role, token_id in special.items()})
