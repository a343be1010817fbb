"""What `outrider serve` does once its options are checked: load, listen, end."""

import socket

from outrider.cli.console import note, waiting
from outrider.cli.loading import load
from outrider.cli.serve_job import ServeJob
from outrider.engine.config import EngineConfig
from outrider.engine.generate import build_engine
from outrider.errors import InvalidRequestError
from outrider.server.keys import ENVIRONMENT, read_keys
from outrider.server.running import serve
from outrider.server.settings import Settings

__all__ = ["run"]


def run(job: ServeJob) -> None:
    """Serve until a signal ends it.

    Raises:
        OutriderError: the model cannot be used, or the port is taken.
    """
    keys = read_keys(job.api_key_file)
    settings = Settings(model=job.name, keys=keys, **job.settings)
    config = EngineConfig(**job.engine)
    listener = _listen(job.host, job.port)
    try:
        loaded = load(job.model, job.loading, job.drafters)
        with waiting("preparing drafters"):
            engine = build_engine(loaded, drafters=job.drafters, policy=job.policy, config=config)
        host, port = listener.getsockname()[:2]
        note(f"serving {job.name} on http://{host}:{port} with {', '.join(engine.drafters.names) or 'no drafters'}")
        if not keys and not host.startswith("127.") and host != "::1":
            note(f"no API key is set: whoever reaches {host} may ask; set --api-key-file or {ENVIRONMENT}.")
        serve(engine, settings, listener)
    finally:
        listener.close()


def _listen(host: str, port: int) -> socket.socket:
    """Take the port before the model is loaded.

    Raises:
        InvalidRequestError: the port is taken or the address is not this machine's.
    """
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRequestError(
            f"--host {host} --port {port} cannot be listened on ({reason.lower()}); choose another."
        ) from error
