"""On what and with what a benchmark was measured.

This module knows machines, packages and files; it does not know what is measured. Invariant: nothing here changes while
a benchmark runs, so that two runs with equal provenance may be compared.
"""

import hashlib
import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["file_hashes", "machine", "now", "versions"]

_PACKAGES = ("outrider", "torch", "numpy", "transformers", "tokenizers")
_WEIGHTS = (".gguf", ".safetensors")


def machine() -> dict[str, Any]:
    """Processor, its cores, the GPU and the system."""
    import torch

    has_gpu = torch.cuda.is_available()
    return {
        "cpu": _cpu_name(),
        "num_cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if has_gpu else None,
        "system": platform.system(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that do the work."""
    return {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}


def now() -> str:
    """The date and time, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def file_hashes(path: Path) -> list[dict[str, Any]]:
    """Name, size and SHA-256 of a file, or of the weight files of a folder."""
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.suffix in _WEIGHTS)
    return [{"name": file.name, "bytes": file.stat().st_size, "sha256": _hash(file)} for file in files]


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines: Iterable[str] = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = ()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
