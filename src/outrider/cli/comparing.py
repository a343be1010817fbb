"""The same prompt with and without speculation, taking turns in one process.

The runs are those of `bench`; this module says how one prompt is compared. Invariant: both kinds have the same seed,
prompt and engine and run equally often, so that a machine that slows down slows both.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from outrider.bench.runs import Run, first_difference, margin_at, measure, seconds_per_token
from outrider.bench.turns import turn_order
from outrider.cli.console import progress_bar
from outrider.core.params import SamplingParams, Speculation
from outrider.engine.engine import Engine

__all__ = ["Comparison", "compare"]

_TURNS = 3


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
            small one says that rounding decided. None where the tokens are the same.
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
    runs: dict[bool, list[Run]] = {False: [], True: []}
    with progress_bar("comparing", _TURNS * len(runs)) as tick:
        for turn in range(_TURNS):
            for is_on in turn_order(list(runs), turn):
                asked = replace(speculation, off=not is_on)
                runs[is_on].append(measure(engine, prompt, params, asked, prediction=prediction))
                tick()
    texts = [run.output for run in runs[False] + runs[True]]
    differing = [place for text in texts if (place := first_difference(texts[0], text)) is not None]
    place = min(differing, default=None)
    return Comparison(
        plain_seconds=_median(runs[False]),
        speculative_seconds=_median(runs[True]),
        is_equal=not differing,
        first_difference=place,
        rounds=_TURNS,
        margin=None if place is None else margin_at(engine, prompt, runs[False][0], place, params),
    )


def _median(runs: Sequence[Run]) -> float:
    return statistics.median(seconds_per_token([run]) or 0.0 for run in runs)
