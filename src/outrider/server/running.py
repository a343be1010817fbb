"""A server on a port: starts, says where it is, ends cleanly.

This module knows uvicorn and signals; it does not know requests. Invariant: after the signal no request is taken, the
ones that run may go on for the grace time, then each stream gets an end, and only then the process ends.
"""

import asyncio
import logging
import socket
import sys

import uvicorn

from outrider.cache.pages import gather_heap
from outrider.engine.engine import Engine
from outrider.engine.worker import Worker
from outrider.errors import InvalidRequestError
from outrider.server.app import create_app
from outrider.server.reading import Reader
from outrider.server.settings import Settings
from outrider.server.token_texts import TokenTexts

__all__ = ["Server", "make_server", "serve"]

_LAST_SECONDS = 5.0  # for the last chunks to leave
_IDLE_SECONDS = 75  # longer than clients and proxies keep an idle connection, so that no request meets its closing


class Server(uvicorn.Server):
    """Uvicorn with an engine behind it.

    Args:
        config: of uvicorn.
        worker: runs the engine.
        grace_seconds: how long running answers may go on.
    """

    def __init__(self, config: uvicorn.Config, worker: Worker, grace_seconds: float) -> None:
        super().__init__(config)
        self.worker = worker
        self._grace_seconds = grace_seconds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let the engine end what runs while uvicorn waits for the answers."""
        stopping = asyncio.create_task(asyncio.to_thread(self.worker.stop, self._grace_seconds))
        await super().shutdown(sockets)
        await stopping


def make_server(engine: Engine, settings: Settings) -> Server:
    """A server that is not started yet; its worker neither.

    Raises:
        InvalidRequestError: the engine has no tokenizer.
    """
    if engine.tokenizer is None:
        raise InvalidRequestError("the engine has no tokenizer; a server needs one.")
    worker = Worker(engine, max_requests=settings.max_waiting)
    app = create_app(worker, Reader(engine.tokenizer, engine.params, settings), TokenTexts(engine.tokenizer), settings)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=int(settings.grace_seconds + _LAST_SECONDS),
    )
    return Server(config, worker, settings.grace_seconds)


def serve(engine: Engine, settings: Settings, listener: socket.socket) -> None:
    """Serve on a socket that listens, until a signal ends it."""
    server = make_server(engine, settings)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    access = logging.getLogger("outrider.access")
    access.addHandler(handler)
    access.setLevel(logging.INFO)
    access.propagate = False
    gather_heap()
    server.worker.start()
    try:
        server.run(sockets=[listener])
    finally:
        server.worker.stop()
        access.removeHandler(handler)
