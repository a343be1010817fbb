"""The model behind the live view: loaded when it is first asked for, run on a thread of its own, one run at a time.

This module knows names of models and what a page may ask; the race itself is in `race`. Invariants: a reader that
leaves ends its run; a second run waits for nothing, it is refused in one sentence.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from outrider.core.coins import fresh_seed
from outrider.core.params import SamplingParams, Speculation
from outrider.drafters.registry import build_drafter, check_drafter
from outrider.engine.generate import default_params, encode_prompt
from outrider.errors import InvalidRequestError, OutriderError
from outrider.explorer.race import Event, Letters, race
from outrider.explorer.toy import SpelledTarget
from outrider.explorer.turns import Pair, WatchedEngine
from outrider.models.loading import LoadedModel, list_models, load_model
from outrider.models.tokenizer import Tokenizer
from outrider.policies.fixed import Fixed

__all__ = ["TOY", "Live", "Run"]

TOY = "toy"
"""Name of the model that is always at hand."""
_DEFAULT = "smollm2"


@dataclass(frozen=True, slots=True)
class Run:
    """What the page asks for.

    Attributes:
        prompt: a user's message.
        max_tokens: output tokens at most.
        temperature: 0 takes the most probable token.
        seed: of both sides; None draws one.
        drafter: such as `ngram:max=4`.
        length: draft tokens a pass.
        width: children of a node; 1 is a chain.
    """

    prompt: str
    max_tokens: int = 96
    temperature: float = 0.0
    seed: int | None = None
    drafter: str = "ngram"
    length: int = 6
    width: int = 1

    def params(self) -> dict[str, Any]:
        """How tokens are drawn."""
        seed = fresh_seed() if self.seed is None else self.seed
        return {"max_tokens": self.max_tokens, "temperature": self.temperature, "seed": seed}

    def speculation(self) -> Speculation:
        """How the side with drafts speculates."""
        tree = None if self.width == 1 else (self.width, self.width * self.length)
        return Speculation(length=self.length, tree=tree)


@dataclass(slots=True)
class _Loaded:
    """A model that is ready: real weights, or the toy."""

    model: LoadedModel | None
    toy: SpelledTarget | None
    letters: Letters


class Live:
    """Runs the live view.

    Args:
        model: a name, a loaded model, or None for `smollm2` where it is on this machine and the toy where it is not.
    """

    def __init__(self, model: str | LoadedModel | None = None) -> None:
        self._model = _at_hand() if model is None else model
        self._loaded: _Loaded | None = None
        self._busy = threading.Lock()

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._model if isinstance(self._model, str) else self._model.name

    def run(self, asked: Run) -> Iterator[Event]:
        """Race a prompt; what goes wrong before the first event is raised, later it is an event.

        Raises:
            InvalidRequestError: a run is under way, or something cannot be meant.
        """
        check_drafter(asked.drafter)
        SamplingParams(**asked.params())
        if not self._busy.acquire(blocking=False):
            raise InvalidRequestError("another run is under way; stop it, or wait until it ends.")
        events: SimpleQueue[Event | None] = SimpleQueue()
        stopped = threading.Event()
        thread = threading.Thread(target=self._work, args=(asked, events.put, stopped.is_set), daemon=True)
        thread.start()
        return _read(events, stopped)

    def _work(self, asked: Run, put: Callable[[Event | None], None], is_stopped: Callable[[], bool]) -> None:
        """The thread of a run."""
        try:
            for event in self._race(asked, is_stopped):
                put(event)
        except OutriderError as error:
            put({"kind": "error", "message": str(error)})
        except Exception as error:  # whatever it is, the page must not wait for ever
            put({"kind": "error", "message": f"the run broke off: {type(error).__name__}: {error}"})
        finally:
            self._busy.release()
            put(None)

    def _race(self, asked: Run, is_stopped: Callable[[], bool]) -> Iterator[Event]:
        loaded = self._load()
        engines = _engines(loaded, asked)
        prompt, params = _prepared(loaded, asked)
        for event in race(engines, prompt, params, asked.speculation(), loaded.letters, is_stopped):
            yield event | {"model": self.name} if event["kind"] == "start" else event

    def _load(self) -> _Loaded:
        if self._loaded is None:
            if self._model == TOY:
                toy = SpelledTarget()
                self._loaded = _Loaded(None, toy, Letters(toy.decode, lambda: toy.decode))
            else:
                model = load_model(self._model, progress=False) if isinstance(self._model, str) else self._model
                self._loaded = _Loaded(model, None, _letters(model.tokenizer))
        return self._loaded


def _letters(tokenizer: Tokenizer) -> Letters:
    def reader() -> Callable[[int], str]:
        stream = tokenizer.stream()
        return lambda token: stream.push((token,))

    return Letters(lambda token: tokenizer.decode([token], skip_special=False), reader)


def _at_hand() -> str:
    pulled = any(entry.name == _DEFAULT and entry.pulled for entry in list_models())
    return _DEFAULT if pulled else TOY


def _engines(loaded: _Loaded, asked: Run) -> Pair:
    """Two engines on the loaded weights: one with the drafter that is asked for, beside it one with none."""
    drafters, policy = [build_drafter(asked.drafter, loaded.model, progress=False)], Fixed(asked.length)
    model = loaded.model
    if model is None:
        target = _toy(loaded).target
        return Pair(WatchedEngine(target), target, drafters, policy)
    names: dict[str, Any] = {"tokenizer": model.tokenizer, "end_ids": model.defaults.stop_token_ids}
    return Pair(WatchedEngine(model.target, **names), model.target, drafters, policy, **names)


def _prepared(loaded: _Loaded, asked: Run) -> tuple[list[int], SamplingParams]:
    if loaded.model is None:
        return _toy(loaded).encode(asked.prompt), SamplingParams(**asked.params())
    tokenizer = loaded.model.tokenizer
    prompt = encode_prompt(tokenizer, asked.prompt, raw=not tokenizer.has_chat_template)
    return prompt, default_params(loaded.model.defaults, **asked.params())


def _toy(loaded: _Loaded) -> SpelledTarget:
    if loaded.toy is None:
        raise RuntimeError("no toy is loaded")
    return loaded.toy


def _read(events: "SimpleQueue[Event | None]", stopped: threading.Event) -> Iterator[Event]:
    """The events of a run; a reader that leaves stops it."""
    try:
        while (event := events.get()) is not None:
            yield event
    finally:
        stopped.set()
