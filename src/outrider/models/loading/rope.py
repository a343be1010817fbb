"""Rotary embedding parameters from `config.json`, in the old spelling (`rope_scaling`) and the new (`rope_parameters`).

This module knows spellings. It does not compute frequencies. Invariant: a kind or key that the decoder would not apply
is refused by name, never dropped.
"""

from collections.abc import Mapping
from typing import Any, Literal

from outrider.errors import UnsupportedModelError
from outrider.models.config import Rope

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
    """
    values: dict[str, Any] = {"rope_theta": config.get("rope_theta")}
    values |= config.get("rope_parameters") or config.get("rope_scaling") or {}
    values.setdefault("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    name = str(values.get("rope_type") or values.get("type") or "default")
    _check(values, name, where)
    kind = _KINDS[name]
    theta = values["rope_theta"] if values["rope_theta"] is not None else 10000.0
    if kind == "default":
        return Rope(theta=float(theta))
    return Rope(
        theta=float(theta),
        kind=kind,
        factor=_number(values, "factor", name, where),
        original_context=_original_context(values, config, name, where),
        low_freq_factor=float(values.get("low_freq_factor") or 1.0),
        high_freq_factor=float(values.get("high_freq_factor") or 4.0),
        beta_fast=float(values.get("beta_fast") or 32.0),
        beta_slow=float(values.get("beta_slow") or 1.0),
        attention_factor=_optional(values.get("attention_factor")),
        mscale=_optional(values.get("mscale")),
        mscale_all_dim=_optional(values.get("mscale_all_dim")),
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


def _number(values: Mapping[str, Any], key: str, name: str, where: str) -> float:
    """A value that this kind cannot do without."""
    if values.get(key) is None:
        raise UnsupportedModelError(f"{where} asks for rope type {name!r} but does not give its {key}; add it.")
    return float(values[key])


def _original_context(values: Mapping[str, Any], config: Mapping[str, Any], name: str, where: str) -> int | None:
    """The context before the extension; yarn files may leave it to `max_position_embeddings`."""
    value = values.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    if value is None and name == "yarn":
        value = config.get("max_position_embeddings")
    if value is None and name == "llama3":
        value = _number(values, "original_max_position_embeddings", name, where)
    return None if value is None else int(value)


def _optional(value: Any) -> float | None:
    return None if value is None else float(value)
