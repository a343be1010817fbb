"""What a checkpoint itself says about generation: sampling defaults and the tokens that end a text.

This module reads metadata that is already in memory. It does not know requests: what a request leaves open may be
filled from here by whoever builds it. Invariant: `stop_token_ids` is the union of every place that names an end of
text, since checkpoints name it in several and rarely agree.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.models.loading.values import count, damaged, number, typed

__all__ = ["GenerationDefaults", "defaults_from_folder", "defaults_from_gguf"]

# Control tokens that end a text wherever they occur. GGUF files name one end only, even where the model has two.
_END_TEXTS = frozenset({"<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"})
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_CONTROL = 3
_RANGES: dict[str, dict[str, Any]] = {  # arguments of `number`
    "temperature": {"zero": True},
    "top_k": {},
    "top_p": {"maximum": 1},
    "min_p": {"zero": True, "maximum": 1},
    "repetition_penalty": {},
}
_GGUF_NAMES = {"temperature": "temp", "repetition_penalty": "penalty_repeat"}


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Defaults that come with a model; None where it says nothing.

    Attributes:
        do_sample: whether the model's authors suggest sampling at all.
        temperature, top_k, top_p, min_p, repetition_penalty: suggested values.
        stop_token_ids: every token that ends a text, ascending.
    """

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: tuple[int, ...] = ()


def defaults_from_folder(
    config: Mapping[str, Any], generation_config: Mapping[str, Any], tokenizer_eos: int | None, folder: Path
) -> GenerationDefaults:
    """Merge `config.json` and `generation_config.json`; the latter wins, end-of-text tokens are united.

    Raises:
        DamagedModelError: a value that cannot be meant.
    """
    files = {"config.json": config, "generation_config.json": generation_config}
    merged = {**config, **generation_config}
    where = {key: str(folder / name) for name, values in files.items() for key in values}
    ends = [_ids(values, "eos_token_id", str(folder / name)) for name, values in files.items()]
    return GenerationDefaults(
        do_sample=typed(merged, "do_sample", where.get("do_sample", ""), bool, "true or false"),
        **_sampling(merged, {key: key for key in _RANGES}, where),
        stop_token_ids=_union([*ends, () if tokenizer_eos is None else (tokenizer_eos,)]),
    )


def defaults_from_gguf(metadata: Mapping[str, Any], path: Path) -> GenerationDefaults:
    """Read `general.sampling.*` and every end-of-text token of the vocabulary.

    Raises:
        DamagedModelError: a value that cannot be meant.
    """
    names = {key: f"general.sampling.{_GGUF_NAMES.get(key, key)}" for key in _RANGES}
    ends = [_ids(metadata, f"tokenizer.ggml.{key}", str(path)) for key in _END_KEYS]
    tokens, kinds = metadata.get("tokenizer.ggml.tokens", ()), metadata.get("tokenizer.ggml.token_type", ())
    pairs = enumerate(zip(tokens, kinds, strict=False))
    ends.append([token_id for token_id, (token, kind) in pairs if kind == _CONTROL and token in _END_TEXTS])
    return GenerationDefaults(
        **_sampling(metadata, names, dict.fromkeys(names.values(), str(path))), stop_token_ids=_union(ends)
    )


def _sampling(values: Mapping[str, Any], names: Mapping[str, str], where: Mapping[str, str]) -> dict[str, Any]:
    """The sampling defaults, each read by its name in the file; a `top_k` of -1 says, like 0, that there is no cut."""
    found: dict[str, Any] = {}
    for key, name in names.items():
        file = where.get(name, "")
        if key == "top_k":
            found[key] = 0 if values.get(name) == -1 else count(values, name, file, minimum=0)
        else:
            found[key] = number(values, name, file, **_RANGES[key])
    return found


def _ids(values: Mapping[str, Any], key: str, where: str) -> Sequence[int]:
    """The token ids of a key that may hold one, several or none."""
    value = values.get(key)
    found = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in found):
        raise damaged(where, key, value, "a token id or a list of them")
    return found


def _union(ends: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """All token ids, ascending."""
    return tuple(sorted({token for end in ends for token in end}))
