"""Speculation on a target that is no language model: a slow simulator of the weather.

The target is a Markov chain whose next state takes a while to compute (here: a small Monte Carlo ensemble over a
two-layer toy atmosphere, with fixed noise). The engine, the cache, the rules and the drafters are those that serve
language models; they only ever see rows of logits. Drafting from the record of the day so far saves passes, and the
simulated weather is the same, state by state.

Run it: `python examples/weather.py`.
"""

import sys

import numpy as np
from numpy.typing import NDArray

from outrider.core.params import SamplingParams, Speculation
from outrider.drafters.ngram import NgramDrafter
from outrider.engine.engine import Engine
from outrider.models.table import TableTarget

STATES = ("clear", "haze", "cloud", "rain", "storm", "fog")
_MEMBERS = 4000


def transition_logits(last: tuple[int, ...]) -> NDArray[np.float32]:
    """[states] logits of the next hour's weather after the last two hours: an ensemble is run and counted."""
    generator = np.random.default_rng([17, *last])
    heat = np.full(_MEMBERS, 0.9 * last[-1]) + generator.normal(0.0, 0.35, _MEMBERS)
    damp = np.full(_MEMBERS, float(last[0])) + generator.normal(0.0, 0.35, _MEMBERS)
    for _ in range(24):  # the slow part: small steps of a coupled oscillator
        heat, damp = heat + 0.02 * (damp - heat) + 0.01, damp + 0.02 * (2.5 - heat)
    states = np.clip(np.rint(heat + 0.3 * np.sin(damp)), 0, len(STATES) - 1).astype(int)
    counts = np.bincount(states, minlength=len(STATES)) + 0.5
    logits: NDArray[np.float32] = np.log(counts / counts.sum()).astype(np.float32)
    return logits


def make_engine(*, drafts: bool) -> Engine:
    """The serving engine around the simulator."""
    target = TableTarget(len(STATES), order=2, logits=transition_logits, context_length=4096)
    return Engine(target, [NgramDrafter(4, 1)] if drafts else [])


def simulate(hours: int, seed: int, *, drafts: bool) -> tuple[list[int], int]:
    """States of so many hours, and the passes of the simulator that they took."""
    engine = make_engine(drafts=drafts)
    params = SamplingParams(temperature=1.0, max_tokens=hours, seed=seed)
    (request,) = engine.submit([0, 1], params, Speculation(length=6, off=not drafts))
    while request.finish_reason is None:
        engine.step()
    return request.output, request.stats.steps


def main() -> None:
    """Simulate a week twice and compare."""
    plain, plain_passes = simulate(168, 5, drafts=False)
    fast, fast_passes = simulate(168, 5, drafts=True)
    sys.stdout.write(" ".join(STATES[state] for state in fast[:24]) + " ...\n")
    sys.stdout.write(f"the same weather: {plain == fast}; {plain_passes} passes without drafts, {fast_passes} with\n")


if __name__ == "__main__":
    main()
