"""The same prompt with and without speculation, taking turns in one process."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from outrider.core.params import SamplingParams, Speculation
from outrider.engine.engine import Engine
from outrider.engine.generate import Generation, collect

__all__ = ["Comparison", "compare"]

_ORDER = (False, True, True, False, False, True)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Paired runs of one prompt at one seed.

    Attributes:
        plain_seconds, speculative_seconds: decode seconds a token, median over the runs.
        is_equal: whether all runs gave the same tokens.
        first_difference: output position at which they differ; None where they do not.
        rounds: runs of each kind.
    """

    plain_seconds: float
    speculative_seconds: float
    is_equal: bool
    first_difference: int | None
    rounds: int

    @property
    def speedup(self) -> float:
        """Plain seconds a token over speculative seconds a token."""
        return self.plain_seconds / self.speculative_seconds if self.speculative_seconds else 1.0


def compare(engine: Engine, prompt: Sequence[int], params: SamplingParams, speculation: Speculation) -> Comparison:
    """Decode a prompt by turns with speculation off and on; the engine should be warm.

    Args:
        engine: the engine.
        prompt: token ids.
        params: with a seed, so that the runs can be equal.
        speculation: how the speculative runs speculate.
    """
    plain: list[Generation] = []
    speculative: list[Generation] = []
    for is_on in _ORDER:
        asked = replace(speculation, off=not is_on)
        result = collect(engine, engine.submit(prompt, params, asked))[0]
        (speculative if is_on else plain).append(result)
    texts = [result.tokens for result in plain + speculative]
    differing = [place for text in texts if (place := _first_difference(texts[0], text)) is not None]
    return Comparison(
        plain_seconds=_seconds_per_token(plain),
        speculative_seconds=_seconds_per_token(speculative),
        is_equal=not differing,
        first_difference=min(differing, default=None),
        rounds=len(plain),
    )


def _seconds_per_token(results: Sequence[Generation]) -> float:
    return statistics.median(result.seconds_per_token for result in results)


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    if one == other:
        return None
    shared = (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(shared, min(len(one), len(other)))
