"""Model folders from the Hugging Face hub, by name.

This module knows which files are needed and what the hub's errors mean to a user. It opens none of the files.
Invariant: pickled weights are never downloaded; a folder that is cached completely is used without asking the network.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outrider.errors import DownloadError, ModelError, ModelNotFoundError
from outrider.models.files import PICKLE_SUFFIXES, read_json

__all__ = ["cached_hub_folder", "is_hub_name", "pull_hub_folder"]

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
# Packages whose errors mean that the network failed.
_CLIENTS = frozenset({"huggingface_hub", "httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3", "hf_xet"})
_UNWANTED = ["*/*", "consolidated*", *(f"*{suffix}" for suffix in PICKLE_SUFFIXES)]


def is_hub_name(name: str) -> bool:
    """Whether a name reads as `organisation/repository`."""
    return _NAME.fullmatch(name) is not None and not name.lower().endswith(".gguf")


def cached_hub_folder(name: str) -> Path | None:
    """The folder of a model in the local hub cache, if configuration and all weights are there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError, FileNotFoundError):
        return None
    return folder if _complete(folder) else None


def pull_hub_folder(name: str, *, progress: bool = True) -> Path:
    """Give the folder of a hub model, downloading what is missing.

    Args:
        name: `organisation/repository`.
        progress: show the hub's bars on stderr.

    Raises:
        ModelNotFoundError: the hub does not know the name.
        ModelError: the model is gated.
        DownloadError: no network or no disk space.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    if folder := cached_hub_folder(name):
        return folder
    try:
        with _bars(progress):
            return Path(snapshot_download(name, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except GatedRepoError as error:
        raise ModelError(
            f"The model {name} is gated; accept its terms on the hub, then run `hf auth login`."
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelNotFoundError(
            f"There is no file, folder or hub model named {name!r}; "
            "check the spelling, or run `hf auth login` if it is private."
        ) from error
    except OSError as error:  # includes the hub's and the network library's errors
        raise DownloadError(_sentence(name, error)) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _CLIENTS:
            raise
        raise DownloadError(_sentence(name, error)) from error


@contextmanager
def _bars(shown: bool) -> Iterator[None]:
    """Show or hide the hub's own bars, which go to stderr."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if shown or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _sentence(name: str, error: Exception) -> str:
    """Why a download failed, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    detail = lines[0].partition(". ")[0].removeprefix("Got: ")[:200] if lines else type(error).__name__
    return (
        f"The hub did not give the model {name} ({detail}); check the network and the disk, "
        "or give a model folder or a .gguf file."
    )


def _complete(folder: Path) -> bool:
    """Whether the folder holds a configuration and every weight file."""
    if not (folder / "config.json").is_file():
        return (folder / "adapter_config.json").is_file()
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return any(folder.glob("*.safetensors"))
    try:
        names = set(read_json(index).get("weight_map", {}).values())
    except (ModelError, AttributeError, TypeError):  # damaged, so it lists nothing that could be complete
        return False
    return all((folder / str(name)).is_file() for name in names)
