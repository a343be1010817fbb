"""What every request passes before a route sees it: its size, its key, and the log.

Plain ASGI, so that streams pass through untouched: once one has begun, its chunks may go straight to what the guard was
given to send with, `scope["state"]["send"]`. This module knows HTTP; it knows neither models nor fields.
Invariants: a body beyond the limit is never held in memory; the log says who asked for what and how it went, never what
was written or which key was used.
"""

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.server.keys import KeyRing
from outrider.server.refusals import Refusal, refusal_of
from outrider.server.settings import Settings

__all__ = ["Guard", "error_response"]

logger = logging.getLogger(__name__)
access = logging.getLogger("outrider.access")

_HEADER_BYTES = 32_768
_OPEN = ("/health", "/ready", "/metrics", "/docs", "/openapi.json")


def error_response(refusal: Refusal) -> Response:
    """A refusal as an answer."""
    body = refusal.body.model_dump_json()
    return Response(body, status_code=refusal.status, headers=refusal.headers, media_type="application/json")


class Guard:
    """The outermost layer.

    Args:
        app: what is guarded.
        settings: limits and keys.
        on_answer: told the path and status of each answer.
    """

    def __init__(self, app: ASGIApp, settings: Settings, on_answer: Callable[[str, int], None]) -> None:
        self._app = app
        self._settings = settings
        self._keys = KeyRing(settings.keys)
        self._on_answer = on_answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        visit = _Visit(scope)
        scope["state"]["send"] = send
        sending = visit.sending(send)
        try:
            await self._handle(scope, receive, sending)
        except Exception as error:
            logger.exception("a request failed")
            if not visit.status:
                await error_response(refusal_of(error))(scope, receive, sending)
        finally:
            visit.log()
            self._on_answer(visit.route, visit.status)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > _HEADER_BYTES:
            refusal = Refusal(
                431, f"the headers are larger than {_HEADER_BYTES} bytes; send less.", code="headers_too_large"
            )
            await error_response(refusal)(scope, receive, send)
            return
        caller = self._keys.find(Headers(scope=scope).get("authorization"))
        if caller is None and scope["path"] not in _OPEN:
            refusal = Refusal(
                401,
                "the API key is missing or unknown; send it as `Authorization: Bearer KEY`.",
                code="invalid_api_key",
                headers=[("WWW-Authenticate", "Bearer")],
            )
            await error_response(refusal)(scope, receive, send)
            return
        scope["state"]["caller"] = caller
        try:
            body = await self._read(scope, receive)
        except Refusal as refusal:
            await error_response(refusal)(scope, receive, send)
            return
        await self._app(scope, _again(body, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body.

        Raises:
            Refusal: it is too large or too slow.
        """
        most = self._settings.max_body_bytes
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > most:
            raise self._too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                while True:
                    message = await receive()
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise self._too_large()
                    if not message.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            sentence = f"the body did not come within {self._settings.body_seconds:g} seconds; send it faster."
            raise Refusal(408, sentence, code="slow_body", headers=[("Connection", "close")]) from None

    def _too_large(self) -> Refusal:
        most = self._settings.max_body_bytes
        message = f"the body is larger than {most} bytes; send less at once."
        return Refusal(413, message, code="body_too_large", headers=[("Connection", "close")])


def _again(body: bytes, receive: Receive) -> Receive:
    """Give the body that was read, then whatever the client does next."""
    is_given = False

    async def give() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return give


class _Visit:
    """One request, for the log."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._started = time.perf_counter()
        self._id = uuid.uuid4().hex
        self.status = 0
        scope.setdefault("state", {})["figures"] = {}

    @property
    def route(self) -> str:
        """The path as the application knows it, so that made-up paths do not fill the counters."""
        return str(getattr(self._scope.get("route"), "path", "other"))

    def sending(self, send: Send) -> Send:
        """Note the status, and name the request in the answer."""

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = self._id
            await send(message)

        return noting

    def log(self) -> None:
        """One line of JSON."""
        caller = self._scope["state"].get("caller")
        client = self._scope.get("client")
        entry: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "id": self._id,
            "client": client[0] if client else None,
            "caller": caller.name if caller else None,
            "method": self._scope["method"],
            "path": self._scope["path"][:200],
            "status": self.status,
            "seconds": round(time.perf_counter() - self._started, 4),
        }
        figures = {
            name: value() if callable(value) else value for name, value in self._scope["state"]["figures"].items()
        }
        access.info(json.dumps(entry | figures))
