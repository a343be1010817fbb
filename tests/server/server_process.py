"""A server in a process of its own, to be killed and to have its memory read."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from server_helpers import wait_until

_PROGRAM = """
import json, socket, sys
sys.path[:0] = sys.argv[1:3]
import torch
from server_helpers import make_engine
from outrider.engine.config import EngineConfig
from outrider.engine.generate import build_engine
from outrider.server.running import serve
from outrider.server.settings import Settings
model, config, settings = sys.argv[3], json.loads(sys.argv[5]), json.loads(sys.argv[6])
listener = socket.create_server(("127.0.0.1", int(sys.argv[4])))
print(listener.getsockname()[1], flush=True)
if model == "toy":
    torch.set_num_threads(1)
    engine = make_engine(**config)
else:
    drafters = ["prediction", "ngram", "suffix:shared=1000"]
    engine = build_engine(model, drafters=drafters, config=EngineConfig(**config), progress=False)
serve(engine, Settings(model=model, **({"grace_seconds": 20.0} | settings)), listener)
"""


class Process:
    """A server that was started.

    Args:
        model: "toy", or a model's name.
        port: where it listens; 0 takes a free one.
        config: of the engine.
        settings: of the server.
    """

    def __init__(
        self,
        model: str = "toy",
        *,
        port: int = 0,
        config: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        here = Path(__file__).parent
        given = [model, str(port), json.dumps(config or {}), json.dumps(settings or {})]
        words = [sys.executable, "-c", _PROGRAM, str(here), str(here.parent), *given]
        environment = {**os.environ, "PYTHONPATH": str(here.parents[1] / "src"), "MALLOC_ARENA_MAX": "1"}
        self._client = httpx.Client(timeout=60)
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - a pipe that nobody reads would stop the server
        self.popen = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment)
        assert self.popen.stdout is not None
        self.port = int(self.popen.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    def wait(self, seconds: float = 120.0) -> "Process":
        """Wait until it takes requests."""
        wait_until(self._is_ready, seconds)
        return self

    def _is_ready(self) -> bool:
        try:
            return self._client.get(f"{self.url}/ready").status_code == 200
        except httpx.HTTPError:
            assert self.popen.poll() is None
            return False

    def memory(self) -> int:
        """Bytes of anonymous memory."""
        return self._status("RssAnon:")

    def peak(self) -> int:
        """Bytes of memory at most, since it was started."""
        return self._status("VmHWM:")

    def _status(self, name: str) -> int:
        lines = Path(f"/proc/{self.popen.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

    def gauge(self, name: str) -> float:
        """A figure of its metrics page."""
        lines = self._client.get(f"{self.url}/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"outrider:{name}{{"))

    def is_idle(self) -> bool:
        """Whether nothing waits or runs."""
        return self.gauge("num_requests_running") == self.gauge("num_requests_waiting") == 0

    def kill(self) -> None:
        """End it as a crash would."""
        self.popen.kill()
        self.popen.communicate(timeout=60)
        self._client.close()
        self._log.close()

    def log(self) -> str:
        """What it wrote to standard error."""
        self._log.seek(0)
        return self._log.read()


@contextmanager
def serving_process(model: str = "toy", **options: Any) -> Iterator[Process]:
    """A server that takes requests; it is killed at the end of the block."""
    process = Process(model, **options)
    try:
        yield process.wait()
    finally:
        process.kill()
