"""Open a GGUF file as a checkpoint.

This module joins header, configuration, tensors and tokenizer of one file. It knows nothing that they do not.
Invariant: no token is named that the embedding lacks.
"""

from pathlib import Path

from outrider.errors import DamagedModelError
from outrider.models.loading.checkpoint import Checkpoint, check_tensors
from outrider.models.loading.defaults import defaults_from_gguf
from outrider.models.loading.gguf_config import config_from_gguf
from outrider.models.loading.gguf_header import open_gguf_file
from outrider.models.loading.gguf_source import GgufSource

__all__ = ["open_gguf"]


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file.

    Raises:
        UnsupportedModelError: a family, feature or tensor type that is not supported.
        DamagedModelError: the file is truncated or incomplete.
    """
    from outrider.models.tokenizer.gguf import tokenizer_from_gguf

    file = open_gguf_file(path)
    config = config_from_gguf(file)
    source = GgufSource(file)
    check_tensors(config, source, path)
    num_tokens = len(file.metadata.get("tokenizer.ggml.tokens", ()))
    if num_tokens > config.vocab_size:
        raise DamagedModelError(
            f"The file {path} names {num_tokens} tokens but embeds {config.vocab_size}; fetch the file again."
        )
    return Checkpoint(
        path=path,
        config=config,
        source=source,
        defaults=defaults_from_gguf(file.metadata, path),
        disk_bytes=path.stat().st_size,
        load_tokenizer=lambda: tokenizer_from_gguf(file.metadata, path),
    )
