"""What models there are and what is in them, without reading weights.

This module reads headers and folder listings. It downloads only when asked to inspect a name that is not there yet.
Invariant: what is listed as pulled can be loaded without a network.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from outrider.models.loading.folder_config import SUPPORTED_FAMILIES
from outrider.models.loading.hub import cached_hub_folder
from outrider.models.loading.load import AnyCheckpoint, open_checkpoint
from outrider.models.loading.wheel import BUILT_IN, cached_path

__all__ = ["ModelEntry", "ModelInfo", "inspect_model", "list_models"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What `outrider models inspect` shows.

    Attributes:
        name, path: what was asked for and where it lies.
        family: "llama", "qwen2", "qwen3" or "mistral"; for transformers its model type.
        num_parameters: number of weights; a tied head counts once.
        disk_bytes: size of the weight files.
        context_length: largest number of positions.
        vocab_size: rows of the embedding.
        num_layers, hidden_size: shape of the decoder.
        quantisation: type that holds most of the weights, as in "BF16" or "Q4_K".
        has_chat_template: whether chat messages can be rendered.
        stop_token_ids: every token that ends a text.
    """

    name: str
    path: Path
    family: str
    num_parameters: int
    disk_bytes: int
    context_length: int
    vocab_size: int
    num_layers: int
    hidden_size: int
    quantisation: str
    has_chat_template: bool
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One line of `outrider models list`.

    Attributes:
        name: what to give to `load_model`.
        origin: "built-in" or "hub".
        path: where it lies; None if it was not pulled yet.
        disk_bytes: size of the weights on disk, for a built-in model also before it is pulled.
    """

    name: str
    origin: str
    path: Path | None
    disk_bytes: int

    @property
    def pulled(self) -> bool:
        """Whether it can be loaded without a network."""
        return self.path is not None


def inspect_model(name: str | Path, *, progress: bool = True) -> ModelInfo:
    """Read a model's headers; raises as `load_model`."""
    return _info(str(name), open_checkpoint(name, progress=progress))


def _info(name: str, checkpoint: "AnyCheckpoint") -> ModelInfo:
    """The facts of an opened checkpoint."""
    config = checkpoint.config
    return ModelInfo(
        name=name,
        path=checkpoint.path,
        family=config.family,
        num_parameters=checkpoint.num_parameters,
        disk_bytes=checkpoint.disk_bytes,
        context_length=config.context_length,
        vocab_size=config.vocab_size,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        quantisation=checkpoint.quantisation,
        has_chat_template=checkpoint.load_tokenizer().has_chat_template,
        stop_token_ids=checkpoint.defaults.stop_token_ids,
    )


def list_models() -> list[ModelEntry]:
    """Built-in models first, then the usable ones of the local hub cache, by name."""
    entries = []
    for name, model in sorted(BUILT_IN.items()):
        entries.append(ModelEntry(name, "built-in", cached_path(model), model.member_bytes))
    return entries + _hub_entries()


def _hub_entries() -> list[ModelEntry]:
    """Models of the local hub cache whose family is supported and whose weights are complete."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        cache = scan_cache_dir()
    except CacheNotFound:
        return []
    names = sorted(repo.repo_id for repo in cache.repos if repo.repo_type == "model")
    folders = ((name, cached_hub_folder(name)) for name in names)
    return [
        ModelEntry(name, "hub", folder, sum(path.stat().st_size for path in folder.glob("*.safetensors")))
        for name, folder in folders
        if folder is not None and _supported(folder)
    ]


def _supported(folder: Path) -> bool:
    """Whether the folder's configuration names a family that the decoder knows."""
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and values.get("model_type") in SUPPORTED_FAMILIES
