"""A tokenizer from a folder in the Hugging Face layout.

This module knows `tokenizer.json`, `tokenizer_config.json` and where chat templates may stand. It avoids importing
transformers, which takes a second, wherever `tokenizer.json` is there. Invariant: ids are those that transformers would
give.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.errors import DamagedModelError
from outrider.models.files import read_json, read_text
from outrider.models.tokenizer.chat import ChatTemplate
from outrider.models.tokenizer.tokenizer import SpecialTokens, Tokenizer

if TYPE_CHECKING:
    import tokenizers

__all__ = ["tokenizer_from_folder"]

_ROLES = ("bos", "eos", "pad", "unk")


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Build the tokenizer of a model folder.

    Raises:
        DamagedModelError: there is no tokenizer, or it cannot be read.
    """
    config = read_json(folder / "special_tokens_map.json") | read_json(folder / "tokenizer_config.json")
    backend = _backend(folder)
    texts = {role: _text(config.get(f"{role}_token")) for role in _ROLES}
    ids = {role: backend.token_to_id(text) for role, text in texts.items() if text is not None}
    sources = _templates(folder, config)
    variables = {f"{role}_token": text for role, text in texts.items() if text is not None}
    return Tokenizer(
        backend,
        SpecialTokens(**ids),
        chat_template=ChatTemplate(sources, variables) if sources else None,
    )


def _backend(folder: Path) -> "tokenizers.Tokenizer":
    """The `tokenizers` object: read as it is, or converted by transformers from older files."""
    from tokenizers import Tokenizer as Backend

    path = folder / "tokenizer.json"
    if not path.is_file():
        return _converted(folder)
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises the bare class
        raise DamagedModelError(f"The file {path} cannot be read ({error}); fetch the file again.") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _converted(folder: Path) -> "tokenizers.Tokenizer":
    """Let transformers build a fast tokenizer from a SentencePiece model or from vocabulary and merges."""
    from transformers import AutoTokenizer

    try:
        backend: tokenizers.Tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True).backend_tokenizer
    except Exception as error:
        detail = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DamagedModelError(
            f"The folder {folder} has no usable tokenizer ({detail}); fetch its tokenizer.json."
        ) from error
    return backend


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name; a file of its own goes before the configuration."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return {"default": read_text(path)}
    template = config.get("chat_template") or read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(template, str):
        return {"default": template}
    if not template:
        return {}
    try:
        named = {str(entry["name"]): str(entry["template"]) for entry in template}
    except (TypeError, KeyError) as error:
        raise DamagedModelError(
            f"The file {folder / 'tokenizer_config.json'} holds a chat_template that is neither a text nor a list of "
            "named texts; fetch the file again."
        ) from error
    named.setdefault("default", next(iter(named.values())))
    return named


def _text(token: Any) -> str | None:
    """The spelling of a special token, which may be given with options around it."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
