"""Compiles the native layer: one shared library for each instruction set that this machine's compiler knows.

Run by the build of the package where a C++ compiler is there (`hatch_build.py`), or by hand:
`python -m outrider.models.native.build`. It knows compilers and flags, not what the library does, and imports nothing
of this package. Invariant: a library appears whole or not at all; without a compiler nothing fails.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["VARIANTS", "build", "library_path"]

HERE = Path(__file__).parent

# name -> the compiler's architecture; the best that the CPU has is chosen when the library is loaded
VARIANTS = {"amx": "sapphirerapids", "avx512": "cascadelake", "avx2": "x86-64-v3"}

# OpenMP's own library is not linked: PyTorch has loaded one, and its threads are to do this work too
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fno-math-errno", "-Wno-psabi")


def library_path(variant: str, folder: Path = HERE) -> Path:
    """Where the library of a variant lies."""
    return folder / f"liboutrider_{variant}.so"


def build(folder: Path = HERE) -> list[Path]:
    """Compile every variant that can be compiled here.

    Args:
        folder: where the libraries go.

    Returns:
        The libraries, [] without a compiler or on another kind of machine.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if not compiler or sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return []
    return [path for variant in VARIANTS if (path := _compile(compiler, variant, folder))]


def _compile(compiler: str, variant: str, folder: Path) -> Path | None:
    path = library_path(variant, folder)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        compiled, linked = Path(scratch) / "layer.o", Path(scratch) / path.name
        architecture = f"-march={VARIANTS[variant]}"
        commands = [
            [compiler, *_FLAGS, architecture, "-c", str(HERE / "layer.cpp"), "-o", str(compiled)],
            [compiler, "-shared", str(compiled), "-o", str(linked)],
        ]
        for command in commands:
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                sys.stderr.write(f"outrider: no native {variant} layer: {error}\n")
                return None
            if done.returncode:
                sys.stderr.write(f"outrider: no native {variant} layer: {done.stderr.strip()[-2000:]}\n")
                return None
        linked.replace(path)
    return path


if __name__ == "__main__":
    for built in build():
        sys.stdout.write(f"{built}\n")
