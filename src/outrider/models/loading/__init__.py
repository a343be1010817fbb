"""Models from folders, GGUF files, the hub and the package index.

This package finds, checks and opens checkpoints; it does not compute. Importing it imports neither torch nor
transformers. Invariant: a model that cannot be run exactly is refused by name before its weights are read.
"""

from outrider.models.loading.catalog import ModelEntry, ModelInfo, inspect_model, list_models
from outrider.models.loading.checkpoint import Checkpoint
from outrider.models.loading.defaults import GenerationDefaults
from outrider.models.loading.load import LoadedModel, load_model, open_checkpoint, pull_model

__all__ = [
    "Checkpoint",
    "GenerationDefaults",
    "LoadedModel",
    "ModelEntry",
    "ModelInfo",
    "inspect_model",
    "list_models",
    "load_model",
    "open_checkpoint",
    "pull_model",
]
