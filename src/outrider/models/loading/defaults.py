"""What a checkpoint itself says about generation: sampling defaults and the tokens that end a text.

This module reads metadata that is already in memory. It does not know requests: what a request leaves open may be
filled from here by whoever builds it. Invariant: `stop_token_ids` is the union of every place that names an end of
text, since checkpoints name it in several and rarely agree.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["GenerationDefaults", "defaults_from_folder", "defaults_from_gguf"]

# Control tokens that end a text wherever they occur. GGUF files name one end only, even where the model has two.
_END_TEXTS = frozenset({"<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"})
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_CONTROL = 3


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
    config: Mapping[str, Any], generation_config: Mapping[str, Any], tokenizer_eos: int | None
) -> GenerationDefaults:
    """Merge `config.json` and `generation_config.json`; the latter wins, end-of-text tokens are united."""
    merged = {**config, **generation_config}
    ends = (config.get("eos_token_id"), generation_config.get("eos_token_id"), tokenizer_eos)
    return GenerationDefaults(
        do_sample=merged.get("do_sample"),
        temperature=_float(merged.get("temperature")),
        top_k=_int(merged.get("top_k")),
        top_p=_float(merged.get("top_p")),
        min_p=_float(merged.get("min_p")),
        repetition_penalty=_float(merged.get("repetition_penalty")),
        stop_token_ids=_union(ends),
    )


def defaults_from_gguf(metadata: Mapping[str, Any]) -> GenerationDefaults:
    """Read `general.sampling.*` and every end-of-text token of the vocabulary."""
    sampling = {key.removeprefix("general.sampling."): value for key, value in metadata.items()}
    ends: list[int | None] = [metadata.get(f"tokenizer.ggml.{key}") for key in _END_KEYS]
    tokens, kinds = metadata.get("tokenizer.ggml.tokens", ()), metadata.get("tokenizer.ggml.token_type", ())
    pairs = enumerate(zip(tokens, kinds, strict=False))
    ends += [token_id for token_id, (token, kind) in pairs if kind == _CONTROL and token in _END_TEXTS]
    return GenerationDefaults(
        temperature=_float(sampling.get("temp")),
        top_k=_int(sampling.get("top_k")),
        top_p=_float(sampling.get("top_p")),
        min_p=_float(sampling.get("min_p")),
        repetition_penalty=_float(sampling.get("penalty_repeat")),
        stop_token_ids=_union(ends),
    )


def _union(ends: Iterable[int | Sequence[int] | None]) -> tuple[int, ...]:
    """All token ids of numbers, lists and Nones, ascending."""
    found: set[int] = set()
    for end in ends:
        if isinstance(end, int):
            found.add(end)
        elif end is not None:
            found.update(end)
    return tuple(sorted(found))


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _int(value: Any) -> int | None:
    return None if value is None else int(value)
