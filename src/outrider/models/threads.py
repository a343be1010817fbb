"""The threads that multiply matrices: one team for each thread that ever asked for work, unless it is let go.

This module knows OpenMP's runtime, which PyTorch has loaded; it knows no models. Invariant: nothing depends on it but
time.
"""

import ctypes

__all__ = ["release_team"]

_SOFT = 1


def release_team() -> None:
    """End the calling thread's team of OpenMP threads; its next parallel work makes a new one.

    Note:
        GNU's runtime lets waiting threads sleep at once when it manages more of them than there are cores. A thread
        that loads a model and then leaves the work to another one would slow that one down so (SmolLM2 in its blocks
        on two cores: 16 instead of 6 ms a pass).

    Source:
        OpenMP 5.0, section 3.2.44, `omp_pause_resource_all`.
    """
    try:
        pause = ctypes.CDLL(None).omp_pause_resource_all
    except (OSError, AttributeError, TypeError):  # another runtime, or a system that cannot look
        return
    pause(_SOFT)
