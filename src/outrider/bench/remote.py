"""Paired runs of a server that speaks the OpenAI protocol: each prompt with speculation and without, by turns.

How "without" is reached is the caller's: another address, or other fields in the request. This module knows servers; it
does not know engines. Invariant: both sides get the same prompt, settings and seed, and differ in nothing but what the
caller gave for each.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from outrider.bench.arms import OFF
from outrider.bench.asking import Question, ask, first_model
from outrider.bench.counters import change, read_counters
from outrider.bench.rounds import Divergence, Round
from outrider.bench.runs import Run, first_difference
from outrider.bench.turns import turn_order
from outrider.errors import InvalidRequestError
from outrider.workloads import PromptItem

__all__ = ["ON", "Remote", "Side"]

ON = "on"
_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Side:
    """How one side is asked.

    Attributes:
        url: address of the server; `/v1` is added where it has no path.
        body: further fields of its requests.
    """

    url: str
    body: Mapping[str, Any]

    @property
    def base(self) -> str:
        """Address of the API."""
        url = self.url.rstrip("/")
        return url if urlsplit(url).path else f"{url}/v1"

    @property
    def metrics(self) -> str:
        """Address of the counters."""
        return f"{self.base.removesuffix('/v1')}/metrics"


class Remote:
    """The two sides of a benchmark of servers.

    Args:
        on, off: the sides.
        model: the server's name for its model; None takes the first that it lists.
        timeout: seconds to wait for the next chunk.
    """

    def __init__(self, on: Side, off: Side, model: str | None, *, timeout: float = 600.0) -> None:
        import httpx
        from openai import OpenAI

        self._sides = {OFF: off, ON: on}
        self._http = httpx.Client(timeout=timeout)
        key = os.environ.get("OPENAI_API_KEY") or "none"
        self._clients = {
            side.base: OpenAI(base_url=side.base, api_key=key, max_retries=0, timeout=timeout)
            for side in self._sides.values()
        }
        self._models = {base: model or first_model(client, base) for base, client in self._clients.items()}

    @property
    def model(self) -> str:
        """Name of the model of the side with speculation."""
        return self._models[self._sides[ON].base]

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
        for client in self._clients.values():
            client.close()

    def rounds(
        self,
        items: Sequence[tuple[str, PromptItem]],
        temperatures: Sequence[float],
        *,
        max_tokens: int,
        seed: int,
        raw: bool,
        done: set[tuple[str, float]],
        tick: Callable[[], None] = lambda: None,
    ) -> Iterator[Round]:
        """Measure what is still to be measured, a round at a time.

        Args:
            items: names and prompts.
            temperatures: how to sample.
            max_tokens: output tokens at most.
            seed: of the first prompt; the number of a prompt is added.
            raw: go on from the prompts' own text instead of a chat.
            done: (prompt, temperature) of the rounds that exist.
            tick: called after each round.

        Raises:
            EndpointError: a server does not answer, answers nonsense or breaks off.
        """
        for temperature in temperatures:
            settings = {"temperature": temperature, "max_tokens": max_tokens}
            numbered = [(n, name, item) for n, (name, item) in enumerate(items) if (name, temperature) not in done]
            for place, (number, name, item) in enumerate(numbered):
                question = Question("", _prompt(item, raw=raw), item.tools, settings | {"seed": seed + number})
                if not place:
                    self._warm_up(question)
                yield self._round(name, item.task, question, number)
                tick()

    def _warm_up(self, question: Question) -> None:
        settings = dict(question.settings)
        settings["max_tokens"] = min(settings["max_tokens"], _WARM_UP_TOKENS)
        for kind in self._sides:
            self._ask(kind, replace(question, settings=settings))

    def _round(self, name: str, task: str, question: Question, number: int) -> Round:
        order = turn_order(list(self._sides), number)
        answers = {kind: self._ask(kind, question) for kind in order}
        runs = {kind: answers[kind][0] for kind in self._sides}
        place = first_difference(runs[OFF].output, runs[ON].output)
        return Round(
            prompt=name,
            task=task,
            temperature=question.settings["temperature"],
            seed=question.settings["seed"],
            num_prompt=max(num_prompt for _, num_prompt in answers.values()),
            order=tuple(order),
            runs=runs,
            divergences={} if place is None else {ON: Divergence(place)},
        )

    def _ask(self, kind: str, question: Question) -> tuple[Run, int]:
        """One answer, with the change of the server's counters; they are read outside of its time."""
        side = self._sides[kind]
        before = read_counters(self._http, side.metrics)
        asked = replace(question, model=self._models[side.base], body=side.body)
        run, num_prompt = ask(self._clients[side.base], asked, side.base)
        return replace(run, counters=change(before, read_counters(self._http, side.metrics))), num_prompt


def _prompt(item: PromptItem, *, raw: bool) -> list[dict[str, str]] | str:
    if not raw:
        return [dict(message) for message in item.messages]
    if item.raw is None:
        raise InvalidRequestError(f"prompt {item.id} is a conversation and has no raw text; leave --raw out.")
    return item.raw
