"""The same prompt with and without speculation, taking turns in one process.

This module knows runs and their times. Invariant: both kinds have the same seed, prompt and engine, run equally often
and stand equally early on average, so that a machine that slows down slows both.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from outrider.cli.console import progress_bar
from outrider.core.params import SamplingParams, Speculation
from outrider.engine.engine import Engine
from outrider.engine.generate import Generation, collect

__all__ = ["Comparison", "compare"]

_ORDER = (False, True, True, False, False, True)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Paired runs of one prompt at one seed.

    Attributes:
        plain_seconds, speculative_seconds: decode seconds a token, median over the runs; 0 where all tokens came in
            one pass.
        is_equal: whether all runs gave the same tokens.
        first_difference: output position at which they differ; None where they do not.
        rounds: runs of each kind.
        margin: how far the model's two largest logits are apart at that position, before temperature and penalties; a
            small one says that rounding decided. None where the tokens are the same, or one text only is shorter.
    """

    plain_seconds: float
    speculative_seconds: float
    is_equal: bool
    first_difference: int | None
    rounds: int
    margin: float | None = None

    @property
    def speedup(self) -> float | None:
        """Plain seconds a token over speculative seconds a token; None where there is nothing to compare."""
        if not self.plain_seconds or not self.speculative_seconds:
            return None
        return self.plain_seconds / self.speculative_seconds

    def as_dict(self) -> dict[str, object]:
        """All of it, ready for JSON."""
        return asdict(self) | {"speedup": self.speedup}


def compare(
    engine: Engine,
    prompt: Sequence[int],
    params: SamplingParams,
    speculation: Speculation,
    *,
    prediction: Sequence[int] | None = None,
) -> Comparison:
    """Decode a prompt by turns with speculation off and on; the engine should be warm.

    Args:
        engine: the engine.
        prompt: token ids.
        params: with a seed, so that the runs can be equal.
        speculation: how the speculative runs speculate.
        prediction: the output that the caller expects.
    """
    plain: list[Generation] = []
    speculative: list[Generation] = []
    with progress_bar("comparing", len(_ORDER)) as tick:
        for is_on in _ORDER:
            asked = replace(speculation, off=not is_on)
            result = collect(engine, engine.submit(prompt, params, asked, prediction=prediction))[0]
            (speculative if is_on else plain).append(result)
            tick()
    texts = [result.tokens for result in plain + speculative]
    differing = [place for text in texts if (place := _first_difference(texts[0], text)) is not None]
    place = min(differing, default=None)
    return Comparison(
        plain_seconds=_seconds_per_token(plain),
        speculative_seconds=_seconds_per_token(speculative),
        is_equal=not differing,
        first_difference=place,
        rounds=len(plain),
        margin=None if place is None else _margin(engine, prompt, params, place),
    )


def _margin(engine: Engine, prompt: Sequence[int], params: SamplingParams, place: int) -> float | None:
    """The gap of the two largest logits at an output position of the plain text, which is decoded again up to it."""
    shown = replace(params, logprobs=2, echo=False, max_tokens=place + 1, min_tokens=min(params.min_tokens, place + 1))
    result = collect(engine, engine.submit(prompt, shown, Speculation(off=True)))[0]
    if len(result.logprobs) <= place:
        return None
    best = result.logprobs[place].top
    return best[0][1] - best[1][1] if len(best) > 1 else None


def _seconds_per_token(results: Sequence[Generation]) -> float:
    return statistics.median(result.seconds_per_token for result in results)


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    if one == other:
        return None
    shared = (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(shared, min(len(one), len(other)))
