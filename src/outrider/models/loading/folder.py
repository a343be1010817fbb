"""Open a folder in the Hugging Face layout: `config.json`, `*.safetensors`, tokenizer files.

This module knows which files a folder may hold and which of them rule it out. It reads no weights. Invariant: a folder
that cannot be used is refused here, with the reason that its user would look for first.
"""

import logging
from pathlib import Path

from outrider.errors import DamagedModelError, UnsupportedModelError
from outrider.models.files import read_json
from outrider.models.loading.checkpoint import Checkpoint, check_tensors
from outrider.models.loading.defaults import defaults_from_folder
from outrider.models.loading.folder_config import config_from_folder
from outrider.models.loading.safetensors_source import SafetensorsSource

__all__ = ["open_folder", "refuse_other_folders", "tokenizer_eos"]

logger = logging.getLogger(__name__)


def open_folder(folder: Path) -> Checkpoint:
    """Open a model folder.

    Raises:
        UnsupportedModelError: an adapter, a multimodal model, a family or feature that the decoder does not know.
        DamagedModelError: files that are missing, truncated or unsafe.
    """
    from outrider.models.tokenizer.folder import tokenizer_from_folder

    refuse_other_folders(folder)
    values = read_json(folder / "config.json")
    config = config_from_folder(values, str(folder / "config.json"))
    source = SafetensorsSource(folder)
    check_tensors(config, source, folder)
    return Checkpoint(
        path=folder,
        config=config,
        source=source,
        defaults=defaults_from_folder(
            values, read_json(folder / "generation_config.json"), tokenizer_eos(folder), folder
        ),
        disk_bytes=source.disk_bytes,
        load_tokenizer=lambda: tokenizer_from_folder(folder),
    )


def refuse_other_folders(folder: Path) -> None:
    """Refuse adapters, multimodal models and folders without a configuration.

    Raises:
        UnsupportedModelError: an adapter or a model with image input.
        DamagedModelError: there is no configuration.
    """
    if (folder / "adapter_config.json").is_file():
        base = read_json(folder / "adapter_config.json").get("base_model_name_or_path", "its base model")
        raise UnsupportedModelError(
            f"The folder {folder} holds an adapter (LoRA) for {base}; "
            "merge it into the base model and give that folder."
        )
    for name in ("preprocessor_config.json", "processor_config.json"):
        processor = read_json(folder / name)
        if "image_processor_type" in processor or "image_processor" in processor:
            raise UnsupportedModelError(
                f"The folder {folder} holds a model with image input ({name}); only text models are supported."
            )
    if not (folder / "config.json").is_file():
        files = sorted(path.name for path in folder.iterdir() if path.suffix.lower() == ".gguf")
        remedy = f"give the path of the file {files[0]}" if files else "give a model folder or a .gguf file"
        raise DamagedModelError(f"The folder {folder} has no config.json; {remedy}.")


def tokenizer_eos(folder: Path) -> int | None:
    """Id of the tokenizer's end-of-text token, where `tokenizer_config.json` or `tokenizer.json` tells it.

    Raises:
        DamagedModelError: the entries have types that no tokenizer writes.
    """
    try:
        return _find_eos(folder)
    except (TypeError, ValueError, AttributeError) as error:  # entries of other types than the library writes
        raise DamagedModelError(
            f"The file {folder / 'tokenizer_config.json'} or tokenizer.json does not tell the end-of-text token "
            f"({error}); fetch both again."
        ) from error


def _find_eos(folder: Path) -> int | None:
    """What `tokenizer_eos` gives, from entries that nobody has checked."""
    values = read_json(folder / "tokenizer_config.json")
    token = values.get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    if text is None:
        return None
    added = {entry.get("content"): int(key) for key, entry in values.get("added_tokens_decoder", {}).items()}
    if text in added:
        return added[text]
    tokenizer = read_json(folder / "tokenizer.json")
    listed = {entry.get("content"): entry.get("id") for entry in tokenizer.get("added_tokens", [])}
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    found = listed.get(text, vocabulary.get(text) if isinstance(vocabulary, dict) else None)
    return None if found is None else int(found)
