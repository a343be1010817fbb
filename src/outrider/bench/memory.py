"""The high-water mark of a process's own memory while something runs.

Anonymous resident memory is sampled in a thread (files that are only mapped do not count); on a GPU the allocator's own
mark is read. This module knows processes, not models. Invariant: where a system reports nothing the answer is None,
never 0.
"""

import threading
from pathlib import Path
from types import TracebackType

__all__ = ["PeakMemory", "anonymous_bytes"]

_STATUS = Path("/proc/self/status")


def anonymous_bytes() -> int | None:
    """Anonymous resident memory of this process now; None where the system does not tell."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith("RssAnon:")), None)
    return None if found is None else int(found.split()[1]) * 1024


class PeakMemory:
    """Samples memory in a thread from `with` to its end.

    Args:
        seconds: time between two samples; reading takes some 50 microseconds.
        uses_cuda: whether the mark of a GPU is wanted instead.
    """

    def __init__(self, seconds: float = 0.02, *, uses_cuda: bool = False) -> None:
        self._seconds = seconds
        self._uses_cuda = uses_cuda
        self._peak: int | None = None
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        """Begin to watch."""
        self.restart()
        if not self._uses_cuda:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop watching."""
        self._is_done.set()
        if self._thread.is_alive():
            self._thread.join()

    def restart(self) -> None:
        """Forget the mark and begin a new one."""
        if self._uses_cuda:
            import torch

            torch.cuda.reset_peak_memory_stats()
        self._peak = None

    def peak_bytes(self) -> int | None:
        """Most bytes seen since the last `restart`, now included."""
        if self._uses_cuda:
            import torch

            return int(torch.cuda.max_memory_allocated())
        self._look()
        return self._peak

    def _watch(self) -> None:
        while not self._is_done.wait(self._seconds):
            self._look()

    def _look(self) -> None:
        now = anonymous_bytes()
        if now is not None:
            self._peak = max(now, self._peak or 0)
