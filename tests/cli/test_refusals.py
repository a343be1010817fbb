import pickle
import shutil
from pathlib import Path

import pytest
from cli_helpers import refusal, run, write_model

from outrider.errors import OutriderError

WORDS = {
    ("--logprobs", "2"): ("--logprobs", "--json"),
    ("--logprobs", "21", "--json"): ("logprobs is 21", "0 to 20"),
    ("--n", "0"): ("n is 0",),
    ("--n", "2", "--compare"): ("--compare", "--n is 2"),
    ("--n", "2", "--show-draft"): ("--show-draft", "--n is 2"),
    ("--echo", "--logprobs", "1", "--json"): ("echo is true and logprobs is 1", "not computed"),
    ("--drafter", "ngrm"): ("'ngrm'", "draft_model, ngram"),
    ("--drafter", "ngram:mx=3"): ("'mx'", "max"),
    ("--drafter", "draft_model"): ("add model=...",),
    ("--drafter", "draft_model:model=smolm2"): ("'smolm2'", "smollm2"),
    ("--drafter", "suffix:shared=few"): ("'few'", "a whole number of at least 0"),
    ("--prediction", "missing.txt"): ("--prediction missing.txt cannot be read", "give a readable text file"),
    ("--prediction", "."): ("--prediction . cannot be read",),
    ("--policy", "fixd"): ("'fixd'", "fixed"),
    ("--drafter", "draft_model:model=a/b,dtype=int3"): ("'int3'", "bfloat16"),
    ("--dtype", "int3"): ("dtype is 'int3'", "bfloat16"),
    ("--implementation", "magic"): ("implementation is 'magic'", "transformers"),
    ("--drafter", "draft_model:model=a/b,implementation=magic"): ("'magic'", "decoder"),
    ("--rule", "mach"): ("'mach'", "match"),
    ("--tree", "3"): ("tree is '3'", "such as 3x16"),
    ("--tree", "9x3"): ("tree is '9x3'", "1 <= width <= nodes"),
    ("--tree", "2x8", "--rule", "block"): ("'2x8'", "traversal"),
    ("--temperature", "-1"): ("temperature is -1.0", "0 or more"),
    ("--temperature", "nan"): ("temperature is nan", "0 or more"),
    ("--top-p", "2"): ("top_p is 2.0", "at most 1"),
    ("--stop", ""): ("stop is ['']", "none of them empty"),
    ("--max-tokens", "0"): ("max_tokens is 0", "1 or more"),
    ("--min-tokens", "9", "--max-tokens", "5"): ("min_tokens is 9", "at most max_tokens, which is 5"),
    ("--length", "0"): ("length is 0", "1 or more"),
    ("--file", "x.txt"): ("--file x.txt", "one of them"),
    ("--raw", "--system", "be kind"): ("--system", "--raw"),
    ("--json", "--show-draft"): ("--show-draft", "--json"),
    ("--system", "caf\udce9"): ("'caf\\udce9'", "UTF-8"),
}
MISUSE = {
    ("generate", "hi", "--temprature", "1"): "did you mean --temperature?",
    ("generate", "hi", "--temperature", "warm"): "--temperature is 'warm'",
    ("generate", "hi", "--threads=0"): "--threads is '0'",
    ("generate", "hi", "there"): "in quotes",
    ("gnerate",): "did you mean 'generate'?",
    ("profile", "--repeats", "0"): "--repeats is '0'",
}


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_values_that_cannot_be_meant(model: str, words: tuple[str, ...]) -> None:
    sentence = refusal("generate", "hi", "-m", model, *words)
    assert all(part in sentence for part in WORDS[words]), sentence


@pytest.mark.parametrize(
    ("data", "words", "sentence"),
    [
        (b"", (), "--prediction expected.txt is empty"),
        (b"caf\xe9", (), "--prediction expected.txt is no UTF-8 text (byte 3 is 0xe9); convert it first."),
        (b"x", ("-d", "ngram"), "no drafter follows it; add --drafter prediction."),
        (b"x" * 300, (), "prediction has 300 tokens, but no output can be longer than the context of 256; shorten it."),
    ],
)
def test_predictions_that_cannot_be_followed(model: str, data: bytes, words: tuple[str, ...], sentence: str) -> None:
    Path("expected.txt").write_bytes(data)
    assert sentence in refusal("generate", "hi", "-m", model, "--prediction", "expected.txt", *words)


@pytest.mark.parametrize("words", MISUSE, ids=" ".join)
def test_command_lines_that_cannot_be_read(words: tuple[str, ...]) -> None:
    sentence = refusal(*words, status=2)
    assert MISUSE[words] in sentence
    assert "--help`" in sentence


@pytest.mark.parametrize(
    ("words", "stdin"),
    [(("",), None), ((), ""), (("--file", "empty.txt"), None), (("  \n",), None), (("--raw",), ""), ((), "\n")],
)
def test_empty_prompts(model: str, words: tuple[str, ...], stdin: str | None) -> None:
    Path("empty.txt").touch()
    assert "prompt is empty" in refusal("generate", "-m", model, *words, stdin=stdin)


def test_prompt_files_that_are_missing_folders_or_no_text(model: str, tmp_path: Path) -> None:
    Path("latin.txt").write_bytes(b"caf\xe9")
    assert "missing.txt cannot be read" in refusal("generate", "-m", model, "--file", "missing.txt")
    assert "cannot be read" in refusal("generate", "-m", model, "--file", str(tmp_path))
    assert "byte 3 is 0xe9" in refusal("generate", "-m", model, "--file", "latin.txt")
    assert "standard input is no UTF-8" in refusal("generate", "-m", model, stdin=b"\xff\xfe")
    assert "no UTF-8 text" in refusal("generate", "caf\udce9", "-m", model)


def test_prompts_longer_than_the_context(model: str) -> None:
    assert "context of 256" in refusal("generate", "word " * 60, "-m", model)


@pytest.mark.parametrize("device", ["cuda", "nonsense", "meta"])
def test_devices_that_are_not_there(model: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    if device == "cuda":
        monkeypatch.setattr("torch.empty", _no_device)
    assert f"device is {device!r}" in refusal("generate", "hi", "-m", model, "--device", device)


def _no_device(*_sizes: int, device: str) -> None:
    raise AssertionError("Torch not compiled with CUDA enabled")


def test_unknown_models_and_types(model: str) -> None:
    assert "'smolm2'" in refusal("generate", "hi", "-m", "smolm2")
    assert "'nonsense'" in refusal("generate", "hi", "-m", model, "--dtype", "nonsense")
    assert "'smolm2'" in refusal("models", "inspect", "smolm2")
    assert "'smolm2'" in refusal("models", "pull", "smolm2")


def test_damaged_weights(model: str) -> None:
    shutil.copytree(model, "cut")
    weights = Path("cut/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-100])
    Path("cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    Path("text.gguf").write_text("no weights")
    assert "cut/model.safetensors is truncated" in refusal("generate", "hi", "-m", "cut")
    assert "cut.gguf is truncated" in refusal("generate", "hi", "-m", "cut.gguf")
    assert "text.gguf" in refusal("generate", "hi", "-m", "text.gguf")


def test_pickles_are_never_loaded(model: str) -> None:
    shutil.copytree(model, "pickled")
    Path("pickled/model.safetensors").unlink()
    for path in (Path("pickled/pytorch_model.bin"), Path("weights.bin"), Path("weights.pt")):
        path.write_bytes(pickle.dumps(_Trap()))
    assert "never loaded" in refusal("generate", "hi", "-m", "pickled")
    assert "weights.bin is no .gguf file and may be a pickle" in refusal("generate", "hi", "-m", "weights.bin")
    assert "weights.pt is no .gguf file and may be a pickle" in refusal("generate", "hi", "-m", "weights.pt")
    assert not Path("trap").exists()


class _Trap:
    """Leaves a file behind when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, ("trap", "w")


def test_a_drafter_with_another_vocabulary(model: str) -> None:
    tokenizer = write_model(Path("plain")) / "tokenizer.json"
    swapped = tokenizer.read_text(encoding="utf-8").replace('"a":', '"?":').replace('"b":', '"a":')
    tokenizer.write_text(swapped.replace('"?":', '"b":'), encoding="utf-8")
    sentence = refusal("generate", "hi", "-m", model, "-d", "draft_model:model=plain")
    assert "'plain' cannot draft for" in sentence
    assert model in sentence


def test_a_cache_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").touch()
    monkeypatch.setenv("OUTRIDER_HOME", "file/home")
    assert "OUTRIDER_HOME" in refusal("models", "pull", "smollm2")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")])
def test_memory_that_runs_out(model: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr("outrider.cli.generating.build_engine", fail)
    assert "out of memory" in refusal("generate", "hi", "-m", model)


def test_an_interruption_has_a_status_of_its_own(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("outrider.cli.generating.collect", stop)
    assert "interrupted" in refusal("generate", "hi", "-m", model, status=130)


def test_faults_of_the_program_are_not_hidden(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_args: object, **_options: object) -> None:
        raise LookupError("a fault")

    monkeypatch.setattr("outrider.cli.generating.collect", fault)
    result = run("generate", "hi", "-m", model)
    assert isinstance(result.exception, LookupError)
    assert not isinstance(result.exception, OutriderError)


@pytest.mark.parametrize("words", [("generate", "hi"), ("profile",)])
def test_a_dtype_is_refused_before_anything_is_fetched(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("outrider.models.loading.load.pull_wheel_model", lambda *_a, **_o: pytest.fail("fetched"))
    assert "dtype is 'int3'" in refusal(*words, "--dtype", "int3")
