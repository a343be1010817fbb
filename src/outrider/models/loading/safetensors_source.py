"""Tensors of a folder of `.safetensors` files, single or sharded, read on demand from the mapped files.

This module knows files and headers. It does not know which tensors a model needs. Invariant: a file that is truncated
or listed but absent is refused when the source is made, by name, before any weight is read; pickles are never opened.
"""

import math
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from outrider.errors import DamagedModelError, UnsupportedModelError
from outrider.models.files import PICKLE_SUFFIXES, read_json, unreadable

if TYPE_CHECKING:
    import torch

__all__ = ["SafetensorsSource"]

_FLOATING = frozenset({"F64", "F32", "F16", "BF16"})
_INDEX = "model.safetensors.index.json"
_IGNORED_SHARDS = "consolidated"  # a second copy of the weights under other names, in some Mistral folders


class SafetensorsSource:
    """Tensors by name from all shards of a folder."""

    def __init__(self, folder: Path, *, floating_only: bool = True) -> None:
        """Read the headers of all shards.

        Args:
            folder: the model folder.
            floating_only: whether quantised tensors are refused.

        Raises:
            DamagedModelError: a shard is truncated or missing, or there are only pickled weights.
            UnsupportedModelError: weights of a type that is no plain floating-point type.
        """
        self.files = _shards(folder)
        self._floating_only = floating_only
        self._file_of: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._kinds: dict[str, str] = {}
        for path in self.files:
            self._read_header(path)
        self._open_files: dict[Path, Any] = {}
        self._matrices: dict[str, torch.Tensor] = {}  # views of the mapped files

    def _read_header(self, path: Path) -> None:
        """Note name, shape and type of each tensor of one shard."""
        with _opened(path, "numpy") as file:
            for name in file.keys():  # noqa: SIM118 - the object is no mapping
                entry = file.get_slice(name)
                self._file_of[name] = path
                self._shapes[name] = tuple(entry.get_shape())
                self._kinds[name] = kind = entry.get_dtype()
                if self._floating_only and kind not in _FLOATING and not name.endswith("rotary_emb.inv_freq"):
                    raise UnsupportedModelError(
                        f"The tensor {name} in {path} is stored as {kind}: quantised safetensors weights are not "
                        "supported; use the unquantised model or a GGUF file."
                    )

    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        return frozenset(self._file_of)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, rows first."""
        return self._shapes[name]

    @cached_property
    def quantisation(self) -> str:
        """The type that holds most of the weights, as in "BF16"."""
        sizes: Counter[str] = Counter()
        for name, kind in self._kinds.items():
            sizes[kind] += int(np.prod(self._shapes[name]))
        return sizes.most_common(1)[0][0]

    @property
    def num_parameters(self) -> int:
        """Number of weights of all tensors."""
        return sum(math.prod(shape) for shape in self._shapes.values())

    @property
    def disk_bytes(self) -> int:
        """Size of all shards."""
        return sum(path.stat().st_size for path in self.files)

    def tensor(self, name: str) -> "torch.Tensor":
        """One tensor in the type of the file, a view of the mapped file where the package allows it."""
        tensor: torch.Tensor = self._file(self._file_of[name]).get_tensor(name)
        return tensor

    def rows(self, name: str, ids: "torch.Tensor | Sequence[int]") -> "torch.Tensor":
        """[len(ids), D] rows of a matrix, copied from the mapped file."""
        import torch

        if name not in self._matrices:  # kept: the package's own call a pass would be slow and swallows Ctrl-C
            self._matrices[name] = self.tensor(name)
        return self._matrices[name][torch.as_tensor(ids, dtype=torch.long)]

    def _file(self, path: Path) -> Any:
        """The mapped shard, opened when first asked for and kept."""
        if path not in self._open_files:
            self._open_files[path] = _opened(path, "pt")
        return self._open_files[path]


def _opened(path: Path, framework: str) -> Any:
    """Map one file; damage becomes one sentence."""
    try:
        return safe_open(path, framework=framework)
    except FileNotFoundError as error:
        raise DamagedModelError(f"The weight file {path} is missing; fetch the model again.") from error
    except PermissionError as error:
        raise unreadable(path, error) from error
    except (SafetensorError, OSError, ValueError) as error:
        raise DamagedModelError(
            f"The weight file {path} is truncated or damaged ({error}); fetch the file again."
        ) from error


def _shards(folder: Path) -> list[Path]:
    """The weight files of a folder: those of the index, else all that are there."""
    index = folder / _INDEX
    if index.is_file():
        try:
            names = set(read_json(index)["weight_map"].values())
        except (KeyError, AttributeError, TypeError) as error:
            raise DamagedModelError(f"The index {index} cannot be read ({error}); fetch the file again.") from error
        return [folder / Path(str(name)).name for name in sorted(names)]
    files = sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith(_IGNORED_SHARDS))
    if files:
        return files
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in PICKLE_SUFFIXES)
    if pickles:
        raise DamagedModelError(
            f"The folder {folder} holds pickled weights only ({pickles[0]}), which can run code and are never loaded; "
            "convert them to safetensors."
        )
    raise DamagedModelError(f"The folder {folder} holds no *.safetensors file; give a folder with weights.")
