"""What `outrider explore` does once its options are read: check, listen, open the browser."""

import socket
import threading
import webbrowser
from importlib.util import find_spec

from outrider.cli.console import note
from outrider.errors import InvalidRequestError, UnsupportedError

__all__ = ["serve"]

_NEEDED = ("fastapi", "uvicorn", "altair", "vl_convert")


def serve(model: str | None, host: str, port: int, *, open_browser: bool) -> None:
    """Serve the explorer until it is interrupted.

    Raises:
        UnsupportedError: the extra `explore` is not installed.
        InvalidRequestError: the address cannot be used.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            f"outrider explore needs {', '.join(missing)}; install them with `pip install 'outrider[explore]'`."
        )
    import uvicorn

    from outrider.explorer.app import create_app
    from outrider.explorer.live import Live

    app = create_app(Live(model))
    listener = _listen(host, port)
    address = f"http://{'[' + host + ']' if ':' in host else host}:{listener.getsockname()[1]}/"
    note(f"the explorer is at {address}")
    if open_browser:
        threading.Timer(0.5, webbrowser.open, [address]).start()
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """A socket that is bound before anything is said about it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InvalidRequestError(
            f"{host}:{port} cannot be used ({error.strerror}); give another --port or --host."
        ) from error
    return listener
