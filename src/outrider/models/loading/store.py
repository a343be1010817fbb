"""Where outrider keeps what it downloads.

This module knows one folder. It does not know what lies in it. Invariant: nothing outside this folder is written.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import disk_usage, rmtree
from tempfile import TemporaryDirectory

from outrider.errors import DownloadError

__all__ = ["cache_folder", "check_space", "work_folder"]

_PARTIAL = ".partial-"
_STALE_SECONDS = 24 * 3600.0


def cache_folder() -> Path:
    """`$OUTRIDER_HOME`, else `outrider` in `$XDG_CACHE_HOME` or `~/.cache`."""
    if home := os.environ.get("OUTRIDER_HOME"):
        return Path(home).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "outrider"


def check_space(folder: Path, needed_bytes: int) -> None:
    """Refuse a download that the disk cannot hold.

    Raises:
        DownloadError: less than `needed_bytes` are free.
    """
    free = disk_usage(folder).free
    if free < needed_bytes:
        raise DownloadError(
            f"The folder {cache_folder()} has {free // 1_000_000} MB free and the download needs "
            f"{needed_bytes // 1_000_000} MB; free some space or set OUTRIDER_HOME to a folder on another disk."
        )


@contextmanager
def work_folder() -> Iterator[Path]:
    """A temporary folder inside the cache folder, gone afterwards whatever happens.

    Raises:
        DownloadError: the cache folder cannot be written.
    """
    root = cache_folder()
    try:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        folder = TemporaryDirectory(prefix=_PARTIAL, dir=root, ignore_cleanup_errors=True)
    except OSError as error:
        raise DownloadError(
            f"The cache folder {root} cannot be written ({error.strerror}); set OUTRIDER_HOME to a folder that can."
        ) from error
    with folder as name:
        yield Path(name)


def _sweep(root: Path) -> None:
    """Remove what a killed process left behind a day ago or earlier."""
    for path in root.glob(f"{_PARTIAL}*"):
        try:
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                rmtree(path, ignore_errors=True)
        except FileNotFoundError:  # another process was faster
            continue
