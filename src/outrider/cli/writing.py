"""How a generation is shown: text as it comes, tokens coloured by who wrote them, a line of figures, a document."""

import sys
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.cli.comparing import Comparison
from outrider.cli.console import messages
from outrider.core.params import SamplingParams
from outrider.engine.engine import TextEvent
from outrider.engine.generate import Generation
from outrider.models.tokenizer import Tokenizer

__all__ = ["Writer", "document", "summary"]

_COLOURS = ("green", "cyan", "magenta", "yellow", "blue")


class Writer:
    """Writes text events to standard output.

    Args:
        tokenizer: the target's tokenizer.
        show_draft: write token by token in colours instead of the final text: plain for the target's own tokens, a
            colour for each drafter's. Every token is then shown as it is, so stop strings are not cut away.
    """

    def __init__(self, tokenizer: Tokenizer, *, show_draft: bool) -> None:
        self._decoder = tokenizer.stream(skip_special=False) if show_draft else None
        self._colours: dict[str, str] = {}
        self._console = Console(highlight=False, soft_wrap=True)

    def __call__(self, event: TextEvent) -> None:
        """Show one event."""
        if self._decoder is None:
            sys.stdout.write(event.text)
        else:
            for token, who in zip(event.event.tokens, event.event.provenance, strict=True):
                style = self._colour(who.source) if who.accepted else ""
                self._console.print(Text(self._decoder.push((token,)), style=style), end="")
        if event.event.finish_reason is not None:
            sys.stdout.write("\n")
        sys.stdout.flush()
        if event.event.finish_reason is not None and self._colours:
            legend = [Text(f"{name} ", style=colour) for name, colour in self._colours.items()]
            messages.print(Text.assemble("drafted by: ", *legend, "(uncoloured: the target)"))

    def _colour(self, source: str) -> str:
        return self._colours.setdefault(source, f"bold {_COLOURS[len(self._colours) % len(_COLOURS)]}")


def summary(result: Generation, comparison: Comparison | None, *, show_all: bool) -> None:
    """Print the line of figures, the comparison and, if wanted, everything that was counted."""
    stats = result.stats
    speed = 1 / result.seconds_per_token if result.seconds_per_token else 0.0
    messages.print(
        f"{len(result.tokens)} tokens · {stats.block_efficiency:.2f} tokens a target pass · "
        f"acceptance {stats.acceptance_rate:.2f} · {speed:.1f} tokens/s · "
        f"first token after {result.first_token_seconds:.2f} s · seed {result.seed}"
    )
    if comparison is not None:
        equal = "the same tokens" if comparison.is_equal else f"other tokens from {comparison.first_difference} on"
        messages.print(
            f"speed-up {comparison.speedup:.2f}: {1 / comparison.speculative_seconds:.1f} tokens/s with speculation, "
            f"{1 / comparison.plain_seconds:.1f} without, {equal} (median of {comparison.rounds} runs each, by turns)"
        )
    if show_all:
        messages.print(_table(result))


def document(model: str, result: Generation, params: SamplingParams, comparison: Comparison | None) -> dict[str, Any]:
    """Everything about one generation, ready for JSON."""
    return {
        "model": model,
        "text": result.text,
        "tokens": result.tokens,
        "finish_reason": result.finish_reason,
        "seed": result.seed,
        "num_prompt": result.num_prompt,
        "first_token_seconds": result.first_token_seconds,
        "decode_seconds": result.decode_seconds,
        "tokens_per_second": 1 / result.seconds_per_token if result.seconds_per_token else None,
        "sampling": asdict(params),
        "provenance": [asdict(who) for who in result.provenance],
        "stats": result.stats.as_dict(),
        "comparison": None if comparison is None else asdict(comparison) | {"speedup": comparison.speedup},
    }


def _table(result: Generation) -> Table:
    stats = result.stats
    table = Table(show_header=False, box=None, pad_edge=False)
    positions = range(max(stats.attempts_at, default=-1) + 1)
    rows = {
        "acceptance by position": " ".join(f"{stats.acceptance_rate_at(depth):.2f}" for depth in positions) or "-",
        "accepted / drafted": f"{stats.accepted} / {stats.drafted} ({stats.accepted_fraction:.2f})",
        "mean accepted length": f"{stats.mean_accepted_length:.2f}",
        "steps that drafted": f"{stats.drafted_steps} of {stats.steps} ({stats.coverage:.2f})",
        "drafts wholly refused": f"{stats.zero_accept_steps} ({stats.zero_accept_fraction:.2f})",
        "cut by a stop or limit": str(stats.discarded),
        "rows a pass": f"{stats.rows / stats.steps:.1f}" if stats.steps else "-",
        "drafting": f"{stats.draft_seconds:.3f} s",
        "target passes": f"{stats.verify_seconds:.3f} s",
        "decoding in all": f"{result.decode_seconds:.3f} s after the first token",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    for name, count in stats.accepted_by.items():
        table.add_row(f"from {name}", f"{count} of {stats.drafted_by[name]} draft tokens")
    return table
