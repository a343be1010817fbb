"""A server's own counters of speculation, as Prometheus text.

Reads the names that vLLM made common (`vllm:spec_decode_num_draft_tokens_total` and its kin) and ours, which follow the
same pattern. This module knows names of counters; it does not know requests. Invariant: what is not there, or does not
parse, or went down because the server was started again, is None; a figure is never made up.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

__all__ = ["change", "parse_counters", "read_counters"]

_PREFIXES = ("vllm:", "outrider:")
_NAMES = {
    "spec_decode_num_drafts_total": "drafts",
    "spec_decode_num_draft_tokens_total": "drafted",
    "spec_decode_num_accepted_tokens_total": "accepted",
    "spec_decode_num_rejections_total": "rejections",
    "spec_decode_num_zero_accept_drafts_total": "zero accepts",
    "target_passes_total": "passes",
}
_BY_POSITION = {
    "spec_decode_num_accepted_tokens_per_pos_total": "at",
    "spec_decode_num_attempts_per_pos_total": "tried at",
}


def read_counters(client: "httpx.Client", url: str) -> dict[str, float] | None:
    """Counters of a server now.

    Args:
        client: asks.
        url: address of its metrics.

    Returns:
        "drafts" (steps that drafted), "drafted", "accepted", "rejections", "zero accepts", "passes", "at 0", "at 1",
        ... (accepted tokens by position) and "tried at 0", ..., as far as the server has them; None where it has none.
    """
    import httpx

    try:
        answer = client.get(url)
    except httpx.HTTPError:
        return None
    return parse_counters(answer.text) if answer.is_success else None


def parse_counters(text: str) -> dict[str, float] | None:
    """The same from the text; counters of several engines or models are added up."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = _name(sample.name, sample.labels)
                if name is not None:
                    found[name] = found.get(name, 0.0) + sample.value
    except (ValueError, KeyError, IndexError):
        return None
    return found or None


def change(before: Mapping[str, float] | None, after: Mapping[str, float] | None) -> dict[str, float] | None:
    """How counters rose; None where one is missing or went down."""
    if before is None or after is None:
        return None
    rises = {name: value - before.get(name, 0.0) for name, value in after.items()}
    return None if min(rises.values()) < 0 or before.keys() - after.keys() else rises


def _name(name: str, labels: Mapping[str, str]) -> str | None:
    prefix = next((known for known in _PREFIXES if name.startswith(known)), None)
    if prefix is None:
        return None
    bare = name.removeprefix(prefix)
    if bare in _BY_POSITION:
        return f"{_BY_POSITION[bare]} {int(labels['position'])}"
    return _NAMES.get(bare)
