"""What a decoder needs of its layers, however they are run.

Two kinds: `plain` runs them with PyTorch's own operations everywhere, `native` with a compiled library on CPUs that it
was built for. This module knows neither. Invariant: both give the same numbers up to rounding, write the same keys and
values to the same cache, and each says for itself whether a row's bits depend on what shares the pass.
"""

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from outrider.models.base import ForwardInputs

if TYPE_CHECKING:
    import torch

    from outrider.cache.kv import KVCache

__all__ = ["Run", "Stack"]


class Run(Protocol):
    """One pass through the layers."""

    @property
    def stream(self) -> "torch.Tensor":
        """[N, D] float32 residual stream of the pass's rows as it stands, a view."""

    def layers(self, first: int, end: int) -> None:
        """Add layers [first, end) to the stream and write their keys and values to the cache."""

    def logits(self, rows: NDArray[np.int64]) -> "torch.Tensor":
        """[M] rows of the pass -> [M, H] float32 logits of the tokens whose rows the head has, in its order."""

    def best(self, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """[M] places of their largest logits, as `ForwardOutputs.best`; None where it takes the logits."""


class Stack(Protocol):
    """The layers and the head of a decoder."""

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices as stored, each once."""

    @property
    def head_size(self) -> int:
        """H, tokens whose rows the head has."""

    @property
    def weights(self) -> str:
        """How most weights are held: "bfloat16", "blocks", ..."""

    def start(self, inputs: ForwardInputs, embedded: "torch.Tensor", cache: "KVCache") -> Run:
        """Prepare a pass.

        Args:
            inputs: the pass.
            embedded: [N, D] float32 embeddings of its tokens; the run may write into them.
            cache: takes keys and values.
        """

    def proves_invariance(self) -> bool:
        """Whether a row's bits do not depend on the width of its pass here, by trial."""
