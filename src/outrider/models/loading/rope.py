"""Rotary embedding parameters from `config.json`, in the old spelling (`rope_scaling`) and the new (`rope_parameters`).

This module knows spellings. It does not compute frequencies. Invariant: a kind or key that the decoder would not apply
is refused by name, never dropped.
"""

from collections.abc import Mapping
from typing import Any, Literal

from outrider.errors import UnsupportedModelError
from outrider.models.config import Rope
from outrider.models.loading.values import count, number, typed

__all__ = ["rope_from_config"]

_KINDS: dict[str, Literal["default", "linear", "llama3", "yarn"]] = {
    "default": "default",
    "linear": "linear",
    "llama3": "llama3",
    "yarn": "yarn",
}
_KNOWN = frozenset(
    {
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "factor",
        "finetuned",
        "high_freq_factor",
        "low_freq_factor",
        "mscale",
        "mscale_all_dim",
        "original_max_position_embeddings",
        "partial_rotary_factor",
        "rope_theta",
        "rope_type",
        "truncate",
        "type",
    }
)


def rope_from_config(config: Mapping[str, Any], where: str) -> Rope:
    """Read the rotary embedding of a `config.json`.

    Args:
        config: the parsed file.
        where: its path, for messages.

    Raises:
        UnsupportedModelError: an unknown kind, an unknown key, or a rotation of only a part of each head.
        DamagedModelError: a number that cannot be meant.
    """
    values: dict[str, Any] = {"rope_theta": config.get("rope_theta")}
    given = [typed(config, key, where, dict, "an object") for key in ("rope_parameters", "rope_scaling")]
    values |= given[0] or given[1] or {}
    values.setdefault("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    name = str(values.get("rope_type") or values.get("type") or "default")
    _check(values, name, where)
    kind = _KINDS[name]
    theta = number(values, "rope_theta", where) or 10000.0
    if kind == "default":
        return Rope(theta=theta)
    return Rope(
        theta=theta,
        kind=kind,
        factor=_required(values, "factor", name, where),
        original_context=_original_context(values, config, name, where),
        low_freq_factor=number(values, "low_freq_factor", where) or 1.0,
        high_freq_factor=number(values, "high_freq_factor", where) or 4.0,
        beta_fast=number(values, "beta_fast", where) or 32.0,
        beta_slow=number(values, "beta_slow", where) or 1.0,
        attention_factor=number(values, "attention_factor", where),
        mscale=number(values, "mscale", where, zero=True),
        mscale_all_dim=number(values, "mscale_all_dim", where, zero=True),
    )


def _check(values: Mapping[str, Any], name: str, where: str) -> None:
    """Refuse what the decoder would not apply."""
    if name not in _KINDS:
        raise UnsupportedModelError(f"{where} asks for rope type {name!r}; supported are {', '.join(sorted(_KINDS))}.")
    if unknown := sorted(key for key, value in values.items() if key not in _KNOWN and value is not None):
        raise UnsupportedModelError(f"{where} sets the rope parameter {unknown[0]}, which is not supported.")
    if values["partial_rotary_factor"] not in (None, 1, 1.0):
        raise UnsupportedModelError(
            f"{where} rotates a part of each head only (partial_rotary_factor {values['partial_rotary_factor']}), "
            "which is not supported."
        )
    if values.get("truncate") is False:
        raise UnsupportedModelError(f"{where} sets the rope parameter truncate to false, which is not supported.")


def _required(values: Mapping[str, Any], key: str, name: str, where: str) -> float:
    """A number that this kind cannot do without."""
    value = number(values, key, where)
    if value is None:
        raise UnsupportedModelError(f"{where} asks for rope type {name!r} but does not give its {key}; add it.")
    return value


def _original_context(values: Mapping[str, Any], config: Mapping[str, Any], name: str, where: str) -> int | None:
    """The context before the extension; yarn files may leave it to `max_position_embeddings`."""
    key = "original_max_position_embeddings"
    value = count(values, key, where) or count(config, key, where)
    if value is None and name == "yarn":
        return count(config, "max_position_embeddings", where)
    if value is None and name == "llama3":
        return int(_required(values, key, name, where))
    return value
