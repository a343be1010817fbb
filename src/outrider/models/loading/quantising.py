"""Loading a model with weights of a few bits: which, what that loses, and what is refused.

The loss is the mean Kullback-Leibler divergence of the next token's law from that of the bfloat16 weights, over all
positions of a fixed list of texts. This module knows models and one file of figures for each; it cuts no numbers
itself. Invariant: weights that lose more than was allowed are never given out.
"""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from outrider.errors import InvalidRequestError, UnsupportedError
from outrider.models.loading.loss_texts import TEXTS
from outrider.models.loading.store import cache_folder

if TYPE_CHECKING:
    import torch

    from outrider.models.decoder import Decoder
    from outrider.models.loading.checkpoint import Checkpoint
    from outrider.models.quantise import Bits

__all__ = [
    "CHOICES",
    "MAX_KL",
    "Loss",
    "Quantise",
    "check_quantise",
    "decoder_logits",
    "load_quantised",
    "measure_loss",
]

MAX_KL = 0.05
"""Largest loss that is accepted unless the caller names another."""

_ROUNDING = 3  # another way of rounding has another number, so that old figures are not taken for its own

CHOICES = ("none", "auto", "int8", "int4")


@dataclass(frozen=True, slots=True)
class Quantise:
    """What was asked for.

    Attributes:
        bits: one of `CHOICES`; "auto" is the fewest bits within `max_kl`, bfloat16 if none is.
        max_kl: largest loss, nats a position.
    """

    bits: str = "none"
    max_kl: float = MAX_KL


@dataclass(frozen=True, slots=True)
class Loss:
    """What weights of a few bits change.

    Attributes:
        bits: "int4" or "int8".
        kl: mean Kullback-Leibler divergence from the bfloat16 weights' law, nats.
        agreement: share of positions with the same most probable token.
        num_positions: positions that were compared.
    """

    bits: str
    kl: float
    agreement: float
    num_positions: int

    def __str__(self) -> str:
        """In one line."""
        return (
            f"{self.bits} weights: KL {self.kl:.4f} to bfloat16 and the same most probable token at "
            f"{100 * self.agreement:.1f} % of {self.num_positions} positions"
        )


def check_quantise(text: str) -> Quantise:
    """Read what was asked for, such as "auto" or "int4:max_kl=0.1"; imports no tensor library.

    Raises:
        InvalidRequestError: it says something else.
    """
    bits, _, rest = text.partition(":")
    name, _, value = rest.partition("=")
    with contextlib.suppress(ValueError):
        largest = float(value) if rest else MAX_KL
        if bits in CHOICES and name == ("max_kl" if rest else "") and largest > 0:
            return Quantise(bits, largest)
    raise InvalidRequestError(
        f"quantize is {text!r}; use {', '.join(CHOICES)}, or for another bound than {MAX_KL} such as int4:max_kl=0.1."
    )


def load_quantised(
    checkpoint: "Checkpoint",
    dtype: "torch.dtype",
    device: "torch.device",
    wanted: Quantise,
    head_ids: Sequence[int] | None = None,
) -> "tuple[Decoder, Loss | None]":
    """Read the weights, cut them and make the target; None for the loss where "auto" kept bfloat16.

    Args:
        checkpoint: the model.
        dtype: must be bfloat16.
        device: must be the CPU.
        wanted: what was asked for.
        head_ids: as in `Decoder`; the loss is that of the whole head.

    Raises:
        UnsupportedError: there is no native layer for this model here, or its file holds fewer bits already.
        InvalidRequestError: it loses more than is allowed.
    """
    from outrider.models.decoder import Decoder
    from outrider.models.native.library import library
    from outrider.models.quantise import Bits, QuantisedSource

    _check_supported(checkpoint, dtype, device, wanted)
    native = library()
    stored = _Figures(checkpoint, native.variant if native else "")
    tokenizer, longest = checkpoint.load_tokenizer(), checkpoint.config.context_length
    tokens = [tokenizer.encode(text)[:longest] for text in TEXTS]
    reference: list[list[torch.Tensor]] = []  # made when a loss has to be measured

    def full(ids: Sequence[int] | None = None) -> Decoder:
        return checkpoint.load_target(dtype, device, stored_blocks=False, head_ids=ids)

    def cut(bits: "Bits", ids: Sequence[int] | None = None) -> Decoder:
        source = QuantisedSource(checkpoint.source, bits)
        return Decoder(checkpoint.config, source, dtype=dtype, device=device, kernels="native", head_ids=ids)

    def measured(bits: "Bits") -> Loss:
        if (known := stored.read(bits)) is not None:
            return known
        if not reference:
            reference.append(decoder_logits(full(), tokens))
        loss = measure_loss(bits, reference[0], decoder_logits(cut(bits), tokens))
        stored.write(loss)
        return loss

    tried: list[Loss] = []
    kinds: tuple[Bits, ...] = get_args(Bits)
    for bits in kinds if wanted.bits == "auto" else [kind for kind in kinds if kind == wanted.bits]:
        loss = measured(bits)
        if loss.kl <= wanted.max_kl:
            return cut(bits, head_ids), loss
        tried.append(loss)
    if wanted.bits == "auto":
        return full(head_ids), None
    raise InvalidRequestError(
        f"quantize is {wanted.bits}, but that changes {checkpoint.path.name} by a KL of {tried[-1].kl:.3f}, above "
        f"{wanted.max_kl:g}; use auto, int8, or allow it with {wanted.bits}:max_kl=NUMBER."
    )


def _check_supported(checkpoint: "Checkpoint", dtype: "torch.dtype", device: "torch.device", wanted: Quantise) -> None:
    import torch

    from outrider.models.native.library import library
    from outrider.models.native.stack import fits

    if checkpoint.quantisation not in ("F32", "F16", "BF16"):
        raise UnsupportedError(
            f"quantize is {wanted.bits}, but {checkpoint.path.name} holds {checkpoint.quantisation} already; "
            "leave it out."
        )
    if device.type != "cpu" or dtype != torch.bfloat16 or library() is None or not fits(checkpoint.config):
        raise UnsupportedError(
            f"quantize is {wanted.bits}, but the native layer does not run this model here: it takes bfloat16 on an "
            "x86-64 CPU with AVX2, and must have been built; leave quantize out."
        )


def decoder_logits(decoder: "Decoder", texts: Sequence[Sequence[int]]) -> "list[torch.Tensor]":
    """[positions, V] logits of each text."""
    import numpy as np

    from outrider.models.base import ForwardInputs, Segment

    found = []
    for tokens in texts:
        cache = decoder.make_cache()
        slot, rows = cache.acquire(), np.arange(len(tokens))
        cache.reserve(slot, len(tokens))
        inputs = ForwardInputs(np.asarray(tokens), rows, [Segment(slot, 0, len(tokens), 0)], rows)
        found.append(decoder.forward(inputs, cache).logits)
    return found


def measure_loss(bits: "Bits", reference: "Sequence[torch.Tensor]", logits: "Sequence[torch.Tensor]") -> Loss:
    """Compare two models' logits, [positions, V] for each text."""
    total, same, count = 0.0, 0, 0
    for one, other in zip(reference, logits, strict=True):
        p, q = one.double().log_softmax(-1), other.double().log_softmax(-1)
        total += float((p.exp() * (p - q)).sum())
        same += int((one.argmax(-1) == other.argmax(-1)).sum())
        count += len(one)
    return Loss(bits, total / count, same / count, count)


class _Figures:
    """The measured losses of one model by one variant of the native layer, in a file of the cache folder.

    A folder that cannot be written is no error.
    """

    def __init__(self, checkpoint: "Checkpoint", variant: str) -> None:
        path = checkpoint.path
        files = sorted(path.rglob("*.safetensors")) if path.is_dir() else [path]
        said = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        key = hashlib.sha256(json.dumps([said, TEXTS, _ROUNDING, variant]).encode()).hexdigest()[:24]
        self._file: Path = cache_folder() / "quantised" / f"{key}.json"

    def _all(self) -> dict[str, dict[str, float]]:
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(self._file.read_text(encoding="utf-8"))
            if isinstance(known, dict):
                return known
        return {}

    def read(self, bits: str) -> Loss | None:
        """What was measured before."""
        with contextlib.suppress(KeyError, TypeError):
            return Loss(**self._all()[bits])  # type: ignore[arg-type]  # our own file; anything else is measured anew
        return None

    def write(self, loss: Loss) -> None:
        """Keep what was measured."""
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            partial = self._file.with_suffix(".partial")
            partial.write_text(json.dumps(self._all() | {loss.bits: asdict(loss)}), encoding="utf-8")
            partial.replace(self._file)
