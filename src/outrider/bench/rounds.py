"""One prompt with all kinds of runs, and where their texts part.

Values and their JSON. Invariant: a round is complete; one that was broken off is not stored.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from outrider.bench.runs import Run, run_from_json, run_to_json

__all__ = ["Divergence", "Round", "round_from_json", "round_to_json", "select"]


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a text left the plain one.

    Attributes:
        place: number of the first output token (for a server: letter) that differs, from 0.
        margin: raw log probability of the target's best token there less that of the second; None where nobody tells.
    """

    place: int
    margin: float | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """All runs of one prompt at one temperature.

    Attributes:
        prompt: the prompt's id, unique in the benchmark.
        task: what kind of text it asks for.
        temperature: how it was sampled.
        seed: the seed of all its runs.
        num_prompt: prompt tokens; 0 where a server does not tell.
        order: names of the kinds as they ran.
        runs: kind -> run; `arms.OFF` among them.
        divergences: kind -> where its text left the plain one; only kinds that did.
    """

    prompt: str
    task: str
    temperature: float
    seed: int
    num_prompt: int
    order: tuple[str, ...]
    runs: Mapping[str, Run]
    divergences: Mapping[str, Divergence] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, float]:
        """What a resumed run knows it by."""
        return self.prompt, self.temperature


def select(rounds: Iterable[Round], temperature: float, task: str | None = None) -> list[Round]:
    """The rounds of one temperature, and of one task unless None."""
    return [r for r in rounds if r.temperature == temperature and task in (None, r.task)]


def round_to_json(measured: Round) -> dict[str, Any]:
    """A round as JSON holds it."""
    return {
        "prompt": measured.prompt,
        "task": measured.task,
        "temperature": measured.temperature,
        "seed": measured.seed,
        "num_prompt": measured.num_prompt,
        "order": list(measured.order),
        "runs": {kind: run_to_json(run) for kind, run in measured.runs.items()},
        "divergences": {kind: asdict(where) for kind, where in measured.divergences.items()},
    }


def round_from_json(values: Mapping[str, Any]) -> Round:
    """The round that `round_to_json` wrote.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    return Round(
        prompt=values["prompt"],
        task=values["task"],
        temperature=float(values["temperature"]),
        seed=values["seed"],
        num_prompt=values["num_prompt"],
        order=tuple(values["order"]),
        runs={kind: run_from_json(run) for kind, run in values["runs"].items()},
        divergences={kind: Divergence(**where) for kind, where in values["divergences"].items()},
    )
