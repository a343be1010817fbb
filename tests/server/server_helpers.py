"""A live server around a toy model, and clients for it."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
import numpy as np
import torch
from openai import OpenAI

import toy_text
from outrider.cache.base import Cache
from outrider.core.params import SamplingParams
from outrider.drafters.base import Drafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.prediction import PredictionDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.engine.config import EngineConfig
from outrider.engine.engine import Engine
from outrider.engine.generate import Generation, collect
from outrider.models.base import ForwardInputs, ForwardOutputs, Target
from outrider.models.tokenizer import Tokenizer
from outrider.models.tokenizer.chat import ChatTemplate
from outrider.models.toy import random_decoder
from outrider.server.running import Server, make_server
from outrider.server.settings import Settings

MODEL = "toy"
TEMPLATE = "{% for m in messages %}{{ m.role }} {{ m.content }}\n{% endfor %}assistant "
CHAT = [{"role": "user", "content": "the cat and the dog"}]


def tokenizer() -> Tokenizer:
    """The tests' tokenizer with a chat template."""
    plain = toy_text.make_tokenizer(64)
    return Tokenizer(plain.backend, plain.special, chat_template=ChatTemplate({"default": TEMPLATE}, {}))


def target(seed: int = 1) -> Target:
    """A small random model that spells letters."""
    return random_decoder(seed, vocab_size=64, context_length=512, layers=2, hidden=16, heads=2)


def make_engine(
    model: Target | None = None,
    drafters: Sequence[Drafter] | None = None,
    *,
    words: Tokenizer | None = None,
    end_ids: Sequence[int] = (0,),
    **config: Any,
) -> Engine:
    """An engine with the drafters that need no model."""
    usual = (PredictionDrafter(), NgramDrafter(), SuffixDrafter(shared=1000))
    return Engine(
        model or target(),
        usual if drafters is None else drafters,
        tokenizer=words or tokenizer(),
        end_ids=end_ids,
        params=SamplingParams(),
        config=EngineConfig(**config),
    )


@dataclass
class Live:
    """A server that runs."""

    server: Server
    engine: Engine
    url: str
    thread: threading.Thread
    closing: contextlib.ExitStack

    def client(self, **options: Any) -> OpenAI:
        """The official client; closed with the server."""
        given = {"api_key": "none", "max_retries": 0, "timeout": 60} | options
        return self.closing.enter_context(OpenAI(base_url=f"{self.url}/v1", **given))

    def http(self, **options: Any) -> httpx.Client:
        """A client that hides nothing."""
        return self.closing.enter_context(httpx.Client(base_url=self.url, timeout=60, **options))

    def held(self) -> tuple[int, int]:
        """Requests and cache slots in use, between two steps."""
        question = self.server.worker.call(lambda e: (e.num_unfinished, len(e.scheduler.running)))
        return question.result(30)


@contextlib.contextmanager
def serving(engine: Engine | None = None, **settings: Any) -> Iterator[Live]:
    """A server on a free port that runs until the end of the block."""
    engine = engine or make_engine()
    server = make_server(engine, Settings(**{"model": MODEL, "grace_seconds": 5.0} | settings))
    listener = socket.create_server(("127.0.0.1", 0))
    server.worker.start()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        with contextlib.ExitStack() as closing:
            yield Live(server, engine, f"http://127.0.0.1:{listener.getsockname()[1]}", thread, closing)
    finally:
        server.should_exit = True
        thread.join(60)
        server.worker.stop()
        assert not thread.is_alive(), "the server did not end"


def wait_until(condition: Any, seconds: float = 30.0) -> None:
    """Wait for something that must come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


_PLAIN = make_engine(drafters=())


def plain(prompt: str | Sequence[dict[str, str]], **params: Any) -> Generation:
    """What plain decoding gives in process for a text or a conversation."""
    words = tokenizer()
    tokens = words.encode(prompt) if isinstance(prompt, str) else words.apply_chat(prompt)
    return collect(_PLAIN, _PLAIN.submit(tokens, SamplingParams(**params)))[0]


def text_of(chunks: Sequence[Any], index: int = 0) -> str:
    """The text of one choice of a stream, of chats or completions."""
    mine = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join([(choice.delta.content if hasattr(choice, "delta") else choice.text) or "" for choice in mine])


class Speller:
    """A target that writes one text, whatever the prompt of one length says, and ends it.

    Args:
        text: what it writes.
        num_prompt: tokens of the prompts.
    """

    def __init__(self, text: str, num_prompt: int) -> None:
        self._model = target()
        self.vocab_size, self.context_length = self._model.vocab_size, self._model.context_length
        self.weight_bytes, self.make_cache = self._model.weight_bytes, self._model.make_cache
        self._script = [*tokenizer().encode(text), 0]
        self._num_prompt = num_prompt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, inputs: ForwardInputs, cache: Cache) -> ForwardOutputs:
        outputs = self._model.forward(inputs, cache)
        logits = torch.full_like(outputs.logits, -20.0)
        for row, place in enumerate(np.asarray(inputs.positions)[np.asarray(inputs.logits_rows)].tolist()):
            number = place + 1 - self._num_prompt
            logits[row, self._script[number] if number < len(self._script) else 0] = 20.0
        return replace(outputs, logits=logits)
