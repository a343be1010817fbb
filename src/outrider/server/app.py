"""The application: which path does what.

It joins the parts and knows none of their insides. Invariant: every answer that is an error has OpenAI's shape.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from outrider import __version__
from outrider.engine.engine import Engine
from outrider.engine.worker import Worker
from outrider.errors import OutriderError
from outrider.server.answers import Chat, Shape, Text
from outrider.server.fields import ChatRequest, CompletionRequest, ResetRequest
from outrider.server.guard import Guard, error_response
from outrider.server.meters import Meters
from outrider.server.metrics import EngineCollector, page
from outrider.server.reading import Asked, Reader, scope_of
from outrider.server.refusals import ErrorBody, Refusal, refusal_of, refusal_of_fields
from outrider.server.session import GoneError, Post, Session
from outrider.server.settings import Settings
from outrider.server.streaming import EventStream, answer_whole
from outrider.server.token_texts import TokenTexts

__all__ = ["create_app"]

logger = logging.getLogger(__name__)

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text}
    for status, text in {
        400: "A parameter is unknown, unsupported or out of range.",
        401: "The API key is missing or unknown.",
        404: "There is no such model or path.",
        408: "The body came too slowly, or the answer took too long.",
        413: "The body is too large.",
        429: "The server is full; try again later.",
        500: "The request failed.",
        503: "The server is stopping.",
    }.items()
}
_STREAM = {"text/event-stream": {"schema": {"type": "string", "description": "With stream: chunks, then [DONE]."}}}
_ANSWERS = _ERRORS | {200: {"content": _STREAM, "description": "The answer."}}
_LONG_TEXT = 20_000  # letters from which reading a request leaves the event loop


class ModelList(BaseModel):
    """Answer of `/v1/models`."""

    object: str = "list"
    data: list[Model]


class Status(BaseModel):
    """Answer of `/health`, `/ready` and `/v1/drafters/reset`."""

    status: str


class _Server:
    """What the routes share."""

    def __init__(self, worker: Worker, reader: Reader, texts: TokenTexts, settings: Settings) -> None:
        self.worker, self.reader, self.texts, self.settings = worker, reader, texts, settings
        self.post = Post()
        worker.after_delivery = self.post.send
        self.registry = CollectorRegistry()
        self.meters = Meters(self.registry, settings.model)
        self.collector = EngineCollector(settings.model, worker)
        self.registry.register(self.collector)
        self.created = int(time.time())

    async def answer(
        self,
        request: Request,
        fields: ChatRequest | CompletionRequest,
        read: Callable[[Any, Any], Asked],
        shape_of: Callable[[Asked, str, TokenTexts], Shape],
    ) -> Response:
        """Submit what was asked and answer it."""
        if fields.model != self.settings.model:
            raise Refusal(
                404,
                f"model is {fields.model[:80]!a}; this server has {self.settings.model!r}.",
                param="model",
                code="model_not_found",
            )
        asked = await self._read(request, fields, read)
        session = Session(self.worker, asked, self.post, self.meters, self.settings.request_seconds)
        figures = request.state.figures
        figures |= {
            "stream": fields.stream,
            "choices": asked.num_choices,
            "prompt_tokens": sum(map(len, asked.prompts)),
        }
        await session.open()
        figures["completion_tokens"] = lambda: session.num_tokens  # read when the answer is over
        headers = {"X-Outrider-Seed": str(asked.params.seed)}
        shape = shape_of(asked, self.settings.model, self.texts)
        if not fields.stream:
            return await answer_whole(request, session, shape, headers)
        wanted = fields.stream_options
        return EventStream(
            session,
            shape,
            usage=wanted is not None and wanted.include_usage,
            continuous=wanted is not None and wanted.continuous_usage_stats,
            headers=headers,
        )

    async def _read(self, request: Request, fields: Any, read: Callable[[Any, Any], Asked]) -> Asked:
        """Tokens and settings; long texts are read beside the event loop."""
        size = len(await request.body())
        if size > _LONG_TEXT:
            return await asyncio.to_thread(read, fields, request.state.caller)
        return read(fields, request.state.caller)


def create_app(worker: Worker, reader: Reader, texts: TokenTexts, settings: Settings) -> FastAPI:
    """The application around a worker that runs.

    Args:
        worker: runs the engine.
        reader: reads requests for its model.
        texts: writes single tokens.
        settings: limits and doors.
    """
    server = _Server(worker, reader, texts, settings)
    app = FastAPI(
        title="outrider",
        version=__version__,
        description="Exact speculative decoding behind OpenAI's interface.",
        redoc_url=None,
        lifespan=_nothing,
    )
    _add_routes(app, server)
    _add_errors(app)
    app.add_middleware(Guard, settings=settings, on_answer=server.meters.answer)
    if settings.cors_origins:  # around the guard, so that a page can read its refusals too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["Retry-After", "X-Outrider-Seed", "X-Request-Id"],
        )
    app.state.outrider = server
    _describe(app)
    return app


@asynccontextmanager
async def _nothing(app: FastAPI) -> AsyncIterator[None]:  # noqa: ARG001 - the library's
    """The worker outlives the application."""
    yield


def _add_routes(app: FastAPI, server: _Server) -> None:
    @app.post("/v1/chat/completions", response_model=ChatCompletion, responses=_ANSWERS, tags=["texts"])
    async def chat_completions(request: Request, fields: ChatRequest) -> Response:
        """Answer a conversation."""
        return await server.answer(request, fields, server.reader.chat, Chat)

    @app.post("/v1/completions", response_model=Completion, responses=_ANSWERS, tags=["texts"])
    async def completions(request: Request, fields: CompletionRequest) -> Response:
        """Go on from texts."""
        return await server.answer(request, fields, server.reader.completion, Text)

    @app.get("/v1/models", response_model=ModelList, responses={401: _ERRORS[401]}, tags=["texts"])
    async def models() -> ModelList:
        """The one model that is served."""
        model = Model(id=server.settings.model, object="model", created=server.created, owned_by="outrider")
        return ModelList(data=[model])

    @app.post("/v1/drafters/reset", response_model=Status, responses=_ERRORS, tags=["speculation"])
    async def reset(request: Request, fields: ResetRequest) -> Status:
        """Forget what drafters and the cache keep of finished texts of this key and salt."""
        scope = scope_of(request.state.caller, fields.cache_salt)
        await asyncio.wrap_future(server.worker.call(lambda engine: _forget(engine, scope)))
        return Status(status="done")

    @app.get("/health", response_model=Status, responses={503: _ERRORS[503]}, tags=["operation"])
    async def health() -> Status:
        """Whether the engine's thread runs."""
        if not server.worker.is_running:
            raise Refusal(503, "the engine does not run; start the server again.", code="stopped")
        return Status(status="ok")

    @app.get("/ready", response_model=Status, responses={503: _ERRORS[503]}, tags=["operation"])
    async def ready() -> Status:
        """Whether new requests are taken."""
        if not server.worker.is_alive:
            raise Refusal(503, "the server is stopping; ask another one.", code="stopping")
        return Status(status="ready")

    @app.get("/metrics", response_class=Response, tags=["operation"])
    async def metrics() -> Response:
        """Counters for Prometheus."""
        body = await page(server.worker, server.collector, server.registry)
        return Response(body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


def _forget(engine: Engine, scope: str) -> None:
    engine.drafters.reset(scope)
    engine.forget_prefixes(scope)


def _add_errors(app: FastAPI) -> None:
    async def refuse(request: Request, error: Exception) -> Response:  # noqa: ARG001 - the library's
        if isinstance(error, GoneError):
            return Response(status_code=499)  # nobody reads it; the log shows it
        if isinstance(error, RequestValidationError):
            return error_response(refusal_of_fields(error.errors()))
        if isinstance(error, HTTPException):
            return error_response(
                Refusal(error.status_code, _sentence(error), headers=list((error.headers or {}).items()))
            )
        refusal = refusal_of(error)
        if refusal.status == 500:
            logger.error("a request failed", exc_info=error)
        return error_response(refusal)

    for kind in (Refusal, GoneError, RequestValidationError, HTTPException, OutriderError):
        app.add_exception_handler(kind, refuse)


def _sentence(error: HTTPException) -> str:
    names = {404: "there is no such path; see /docs.", 405: "this path does not take this method; see /docs."}
    return names.get(error.status_code, f"the request cannot be read: {error.detail}.")


def _describe(app: FastAPI) -> None:
    """The document of the interface without the status that this server does not use."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        document = make()
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # how FastAPI's manual says it
