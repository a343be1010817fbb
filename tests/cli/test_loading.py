"""How a model is loaded is said and refused in one way by every command."""

from pathlib import Path

import pytest
from cli_helpers import run

from outrider.cli.loading import Loading

COMMANDS = {
    "generate": ("hi",),
    "bench": ("--prompts", "prompts.txt"),
    "certify": ("--prompts", "prompts.txt"),
    "chat": (),
    "serve": (),
}


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prompts.txt").write_text("hi\n", encoding="utf-8")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--dtype", "float99"), "float99"),
        (("--quantize", "int3"), "int3"),
        (("--implementation", "other"), "other"),
        (("--drafter", "draft_model:model=/nowhere,dtype=float99"), "float99"),
        (("--drafter", "draft_model:model=/nowhere,quantize=int3"), "int3"),
        (("--drafter", "draft_model:model=/nowhere,implementation=other"), "other"),
    ],
)
def test_what_cannot_be_loaded_so_is_refused_before_anything_is_loaded(
    command: str, words: tuple[str, ...], named: str
) -> None:
    result = run(command, *COMMANDS[command], "-m", "/nowhere", *words)
    assert result.exit_code == 1
    assert named in result.stderr
    assert "/nowhere" not in result.stderr  # the model was not asked for yet
    assert len(result.stderr.strip().splitlines()) == 1


def test_options_that_were_given_are_told_as_they_are_written() -> None:
    assert Loading().given() == []
    assert Loading(quantize="int4", threads=2).given() == ["--quantize", "--threads"]
