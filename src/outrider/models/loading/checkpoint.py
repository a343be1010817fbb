"""An opened checkpoint: its numbers, its tensors by name, its generation defaults; nothing of the weights is read yet.

This module knows which tensors a decoder of the Llama family has and in which shapes. It knows neither file formats nor
arithmetic. Invariant: a checkpoint that passed `check_tensors` has every tensor that the decoder reads, in the right
shape, and none that the decoder would silently ignore.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from outrider.errors import DamagedModelError, UnsupportedModelError
from outrider.models.config import ModelConfig, TensorSource
from outrider.models.shapes import expected_shapes

if TYPE_CHECKING:
    import torch

    from outrider.models.decoder import Decoder
    from outrider.models.loading.defaults import GenerationDefaults
    from outrider.models.tokenizer import Tokenizer

__all__ = ["Checkpoint", "CheckpointSource", "check_tensors"]


class CheckpointSource(TensorSource, Protocol):
    """A tensor source that says how its weights are stored."""

    @property
    def quantisation(self) -> str:
        """The type that holds most of the weights, as in "BF16" or "Q4_K"."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a folder or a GGUF file gives before its weights are read.

    Attributes:
        path: the folder or file.
        config: numbers of the decoder.
        source: tensors on demand.
        defaults: sampling defaults and end-of-text tokens.
        disk_bytes: size of the weight files.
        load_tokenizer: builds the tokenizer.
    """

    path: Path
    config: ModelConfig
    source: CheckpointSource
    defaults: "GenerationDefaults"
    disk_bytes: int
    load_tokenizer: "Callable[[], Tokenizer]"

    @property
    def quantisation(self) -> str:
        """The type that holds most of the weights."""
        return self.source.quantisation

    def load_target(
        self,
        dtype: "torch.dtype",
        device: "torch.device",
        *,
        stored_blocks: bool,
        head_ids: Sequence[int] | None = None,
    ) -> "Decoder":
        """Read the weights and make the target; `stored_blocks` and `head_ids` as in `Decoder`."""
        from outrider.models.decoder import Decoder

        return Decoder(
            self.config, self.source, dtype=dtype, device=device, stored_blocks=stored_blocks, head_ids=head_ids
        )

    @property
    def num_parameters(self) -> int:
        """Number of weights; a tied head counts once."""
        total = 0
        for shape in expected_shapes(self.config).values():
            count = 1
            for size in shape:
                count *= size
            total += count
        return total


def check_tensors(config: ModelConfig, source: CheckpointSource, where: Path) -> None:
    """Compare the tensors of a checkpoint with those that the decoder reads.

    Raises:
        DamagedModelError: a tensor is missing or has another shape than the configuration says.
        UnsupportedModelError: there is a tensor that the decoder would ignore.
    """
    expected, present = expected_shapes(config), source.names()
    if missing := sorted(expected.keys() - present):
        raise DamagedModelError(f"{where} lacks {_listed(missing)}; fetch the model again.")
    ignorable = {name for name in present if name.endswith("rotary_emb.inv_freq")} | {"lm_head.weight"}
    if extra := sorted(present - expected.keys() - ignorable):
        raise UnsupportedModelError(
            f"{where} holds {_listed(extra)}, which a {config.family} decoder does not use; "
            "the model has parts that are not supported."
        )
    for name, shape in expected.items():
        if source.shape(name) != shape:
            raise DamagedModelError(
                f"The tensor {name} in {where} has shape {list(source.shape(name))} where the configuration "
                f"says {list(shape)}; configuration and weights do not belong together."
            )


def _listed(names: list[str]) -> str:
    """The first names in words, as in "3 tensors (a, b, ...)"."""
    noun = "the tensor" if len(names) == 1 else f"{len(names)} tensors:"
    return f"{noun} {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
