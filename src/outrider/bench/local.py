"""Paired runs of a loaded model: each prompt with every arm and without, by turns in one process.

This module knows engines and prompts as tokens. It does not know files or tables. Invariants: plain decoding runs in an
engine without drafters, so that nothing of them is left in its time; all runs of a round have the same prompt and seed;
nothing is measured before each engine has run once; no drafter has seen the text of a run before.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from outrider.bench.arms import OFF, Arm
from outrider.bench.memory import PeakMemory
from outrider.bench.rounds import Divergence, Round
from outrider.bench.runs import Run, first_difference, margin_at, measure
from outrider.bench.turns import turn_order
from outrider.core.params import Rule, SamplingParams, Speculation
from outrider.engine.config import EngineConfig
from outrider.engine.engine import Engine
from outrider.engine.generate import build_engine
from outrider.models.loading import LoadedModel

__all__ = ["Local", "Prompt"]

_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as tokens.

    Attributes:
        name: unique in the benchmark.
        task: what kind of text it asks for.
        tokens: its token ids.
        prediction: token ids that the answer is expected to repeat; None without.
        number: its place among the prompts, from 0; with the benchmark's seed it gives the seed of its runs.
    """

    name: str
    task: str
    tokens: Sequence[int]
    prediction: Sequence[int] | None
    number: int


class Local:
    """The engines of a benchmark: one without drafters and one for each arm, all around one target.

    Args:
        loaded: the model.
        arms: what is compared with plain decoding.
        rule: how drafts are judged.
        max_running: requests that may share a pass.

    Raises:
        OutriderError: a drafter cannot be used with the model.
    """

    def __init__(self, loaded: LoadedModel, arms: Sequence[Arm], rule: Rule, *, max_running: int = 16) -> None:
        config = EngineConfig(max_running=max_running, prefix_tokens=0)  # each round reads its prompts
        self.engines: dict[str, Engine] = {OFF: build_engine(loaded, drafters=(), config=config)}
        self.asked: dict[str, Speculation] = {OFF: Speculation(off=True)}
        self._predicting = {arm.name for arm in arms if arm.predicts}
        for arm in arms:
            self.engines[arm.name] = build_engine(
                loaded, drafters=arm.drafters, policy=arm.policy, config=config, progress=False
            )
            self.asked[arm.name] = Speculation(rule=rule, length=arm.length, tree=arm.tree)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of all kinds of runs, `OFF` first."""
        return tuple(self.engines)

    def warm_up(self, prompt: Prompt, params: SamplingParams) -> None:
        """Run each engine once, for a few tokens."""
        limit = min(_WARM_UP_TOKENS, params.max_tokens or _WARM_UP_TOKENS)
        for kind in self.kinds:
            self._run(kind, prompt, replace(params, max_tokens=limit), "warm up", None)

    def rounds(
        self,
        prompts: Sequence[Prompt],
        sampling: Sequence[SamplingParams],
        *,
        done: set[tuple[str, float]],
        memory: PeakMemory | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> Iterator[Round]:
        """Measure what is still to be measured, a round at a time.

        Args:
            prompts: the prompts.
            sampling: how to sample, one for each temperature, with a seed; a prompt's runs add its number to it.
            done: (prompt, temperature) of the rounds that exist.
            memory: a watcher of memory.
            tick: called after each round.
        """
        for params in sampling:
            left = [prompt for prompt in prompts if (prompt.name, params.temperature) not in done]
            if left:
                self.warm_up(left[0], params)
            for prompt in left:
                yield self._round(prompt, _seeded(params, prompt), memory)
                tick()

    def _round(self, prompt: Prompt, params: SamplingParams, memory: PeakMemory | None) -> Round:
        order = turn_order(self.kinds, prompt.number)
        scope = f"temperature {params.temperature:g}"
        runs = {kind: self._run(kind, prompt, params, scope, memory) for kind in order}
        plain = runs[OFF]
        places = {kind: first_difference(plain.output, run.output) for kind, run in runs.items()}
        return Round(
            prompt=prompt.name,
            task=prompt.task,
            temperature=params.temperature,
            seed=params.seed or 0,
            num_prompt=len(prompt.tokens),
            order=tuple(order),
            runs={kind: runs[kind] for kind in self.kinds},
            divergences={
                kind: Divergence(place, margin_at(self.engines[OFF], prompt.tokens, plain, place, params))
                for kind, place in places.items()
                if place is not None
            },
        )

    def _run(self, kind: str, prompt: Prompt, params: SamplingParams, scope: str, memory: PeakMemory | None) -> Run:
        asked, prediction = self.asked[kind], self.prediction(kind, prompt)
        asked = replace(asked, scope=scope)
        return measure(self.engines[kind], prompt.tokens, params, asked, prediction=prediction, memory=memory)

    def prediction(self, kind: str, prompt: Prompt) -> Sequence[int] | None:
        """The prompt's prediction, where a drafter follows it."""
        return prompt.prediction if kind in self._predicting else None


def _seeded(params: SamplingParams, prompt: Prompt) -> SamplingParams:
    return replace(params, seed=(params.seed or 0) + prompt.number)
