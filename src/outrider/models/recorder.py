"""Operations are recorded once and played again: as a CUDA graph, or by doing them again where there are none.

It knows functions, streams and graphs; it knows no model. Invariant: what was recorded, when it is played, does to the
same memory what the function did; one recorder's recordings are played one after the other, never two at once, and what
they hand to each other lies outside of the memory that they share.
"""

import weakref
from collections.abc import Callable

import torch

__all__ = ["CudaRecorder", "Recorder", "do_again"]

Recorder = Callable[[Callable[[], None]], Callable[[], None]]

_WARM_UPS = 2  # libraries choose their routines and take their memory in the first calls


def do_again(function: Callable[[], None]) -> Callable[[], None]:
    """A recorder for devices without graphs: what it gives is the function itself."""
    return function


class CudaRecorder:
    """Records CUDA graphs that share one pool of memory; a `Recorder`.

    Args:
        device: the CUDA device.

    Source: PyTorch's notes on CUDA semantics, "Whole-network capture": warm-up and capture on a stream of their own.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._graphs: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        """Run the function a few times, then record it.

        Raises:
            RuntimeError: the device's memory is full, or an operation cannot be recorded.
        """
        if not self._graphs:
            self._pool = torch.cuda.graph_pool_handle()  # a pool that lost its last graph cannot be used again
        with torch.cuda.device(self._device):
            self._stream.wait_stream(torch.cuda.current_stream())
            try:
                with torch.cuda.stream(self._stream):
                    for _ in range(_WARM_UPS):
                        function()
            finally:  # what was begun reads memory that a caller who gives up is about to free
                torch.cuda.current_stream().wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                function()
        self._graphs.add(graph)
        return graph.replay
