"""The figures of a generation: a line, the comparison, everything that was counted, a document.

This module knows results; it does not run anything.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from outrider.cli.comparing import Comparison
from outrider.cli.console import note, print_rows
from outrider.cli.job import Job
from outrider.core.params import Rule, SamplingParams
from outrider.engine.generate import Generation
from outrider.models.tokenizer import Tokenizer

__all__ = ["document", "summary"]


def summary(
    result: Generation,
    params: SamplingParams,
    comparison: Comparison | None,
    failures: Mapping[str, int] | None,
    *,
    rule: str,
) -> None:
    """Print the line of figures and the comparison, and everything that was counted where failures are given."""
    stats = result.stats
    parts = [
        f"{len(result.tokens)} tokens{' (cut at the limit)' if result.finish_reason == 'length' else ''}",
        f"{stats.block_efficiency:.2f} tokens a target pass",
        f"acceptance {stats.acceptance_rate:.2f}" if stats.drafted else "nothing drafted",
    ]
    if result.seconds_per_token:
        parts.append(f"{1 / result.seconds_per_token:.1f} tokens/s")
    parts.append(f"first token after {result.first_token_seconds:.2f} s")
    if not result.is_exact:
        parts.append(f"approximate: rule {rule} does not keep the model's law")
    if not params.is_greedy:
        parts.append(f"seed {result.seed}")
    note(" · ".join(parts))
    if comparison is not None:
        note(_compared(comparison, rule))
    if failures is not None:
        print_rows([*_rows(result), *_failed(failures)], to_stderr=True)


def document(
    job: Job,
    results: Sequence[Generation],
    params: SamplingParams,
    comparison: Comparison | None,
    failures: Mapping[str, int],
    tokenizer: Tokenizer,
) -> dict[str, Any]:
    """Everything about one call, ready for JSON; several texts stand in `choices`, each with its own figures."""
    shared = {"model": job.model, "drafters": job.drafters, "policy": job.policy, "rule": job.rule, "tree": job.tree}
    texts = [_text(result, params, tokenizer) for result in results]
    more = {
        "sampling": asdict(params) | {"seed": results[0].seed},
        "drafter_failures": dict(failures),
        "comparison": None if comparison is None else comparison.as_dict(),
    }
    return shared | (texts[0] if len(texts) == 1 else {"choices": texts}) | more


def _text(result: Generation, params: SamplingParams, tokenizer: Tokenizer) -> dict[str, Any]:
    """One text with its figures."""
    return {
        "is_exact": result.is_exact,
        "text": result.text,
        "tokens": result.tokens,
        "finish_reason": result.finish_reason,
        "seed": result.seed,
        "num_prompt": result.num_prompt,
        "first_token_seconds": result.first_token_seconds,
        "decode_seconds": result.decode_seconds,
        "tokens_per_second": 1 / result.seconds_per_token if result.seconds_per_token else None,
        "provenance": [asdict(who) for who in result.provenance],
        "logprobs": None if params.logprobs is None else _logprobs(result, tokenizer),
        "stats": result.stats.as_dict(),
    }


def _logprobs(result: Generation, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The model's own view of each token, before temperature, penalties and cuts."""

    def named(token: int, logprob: float) -> dict[str, Any]:
        return {"token": token, "text": tokenizer.decode([token], skip_special=False), "logprob": _finite(logprob)}

    return [
        named(token, entry.logprob) | {"top": [named(*rival) for rival in entry.top]}
        for token, entry in zip(result.tokens, result.logprobs, strict=True)
    ]


def _finite(logprob: float) -> float | None:
    """A number that JSON knows; None for a token that the model itself gives no probability."""
    return logprob if math.isfinite(logprob) else None


def _compared(comparison: Comparison, rule: str) -> str:
    """The paired speed-up in words."""
    place = comparison.first_difference
    equal = "the same tokens" if place is None else f"tokens that differ from output token {place + 1} on"
    if rule == Rule.TYPICAL.value:
        equal += f" (rule {rule} is approximate)"
    elif place is not None and rule != Rule.MATCH.value:
        equal += f" (rule {rule} keeps the law, not the text)"
    if comparison.margin is not None:
        equal += f" (there the model's best two logits are {comparison.margin:.3g} apart)"
    runs = f"{equal} in {2 * comparison.rounds} runs by turns"
    if comparison.speedup is None:
        return f"speed-up unknown, the text is too short to time: {runs}"
    return (
        f"speed-up {comparison.speedup:.2f}: {1 / comparison.speculative_seconds:.1f} tokens/s with speculation, "
        f"{1 / comparison.plain_seconds:.1f} without, {runs}"
    )


def _failed(failures: Mapping[str, int]) -> list[tuple[str, str]]:
    """Rows about drafters that raised or broke the rules."""
    return [(f"{name} failed", f"{count} times") for name, count in sorted(failures.items())]


def _rows(result: Generation) -> list[tuple[str, str]]:
    """Names and values of everything that was counted."""
    stats = result.stats
    positions = range(max(stats.attempts_at, default=-1) + 1)
    kept = "the model's own law" if result.is_exact else "approximate: another law than the model's"
    rows = {
        "rule": f"{result.rule.value} ({kept})",
        "prompt": f"{result.num_prompt} tokens",
        "acceptance by position": " ".join(f"{stats.acceptance_rate_at(depth):.2f}" for depth in positions) or "-",
        "accepted / drafted": f"{stats.accepted} / {stats.drafted} ({stats.accepted_fraction:.2f})",
        "mean accepted length": f"{stats.mean_accepted_length:.2f}",
        "steps that drafted": f"{stats.drafted_steps} of {stats.steps} ({stats.coverage:.2f})",
        "drafts wholly refused": f"{stats.zero_accept_steps} ({stats.zero_accept_fraction:.2f})",
        "cut by a stop or limit": f"{stats.discarded} draft tokens",
        "rows a pass": f"{stats.rows / stats.steps:.1f}" if stats.steps else "-",
        "drafting": f"{stats.draft_seconds:.3f} s",
        "target passes": f"{stats.verify_seconds:.3f} s",
        "after the first token": f"{result.decode_seconds:.3f} s",
    }
    authors = [
        (f"from {name}", f"{stats.accepted_by[name]} of {count} draft tokens")
        for name, count in sorted(stats.drafted_by.items())
    ]
    return [*rows.items(), *authors]
