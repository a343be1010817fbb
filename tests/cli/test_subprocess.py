"""What only a process of its own can show."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import typer
from cli_helpers import spawn

from outrider.cli.app import app
from outrider.drafters.registry import list_drafters
from outrider.policies.registry import list_policies

ROOT = Path(__file__).parents[2]


def test_help_imports_no_tensor_library() -> None:
    code = (
        "import sys\n"
        "from outrider.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "sys.exit(', '.join({'torch', 'numpy', 'transformers', 'huggingface_hub'} & sys.modules.keys()) or 0)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    for words in (["--help"], ["generate", "--help"], ["bench", "--help"], ["models", "inspect", "--help"]):
        done = subprocess.run([sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert "Usage: outrider" in done.stdout


def test_the_generated_pages_are_up_to_date() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "docs"), "--check"], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_names_every_command_and_option() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    commands = {"outrider": typer.main.get_command(app)}
    while commands:
        path, command = commands.popitem()
        section = page.partition(f"## {path}\n")[2].partition("\n## ")[0]
        assert section, path
        assert [o for p in command.params for o in p.opts if o not in section] == []
        commands |= {f"{path} {name}": sub for name, sub in getattr(command, "commands", {}).items()}


def test_the_page_of_drafters_and_policies_names_every_option() -> None:
    page = (ROOT / "docs" / "drafters-and-policies.md").read_text(encoding="utf-8")
    for entry in (*list_drafters(), *list_policies()):
        section = page.partition(f"### `{entry.name}`\n")[2].partition("\n#")[0]
        assert entry.help[1:] in section
        for option in entry.options:
            row = next(line for line in section.splitlines() if line.startswith(f"| `{option.name}` |"))
            assert option.help in row
            assert option.meaning in row


def test_a_reader_that_leaves_is_told_nothing(model: str) -> None:
    read, write = os.pipe()
    os.close(read)
    process = spawn("generate", "hi", "-m", model, "--threads", "1", stdout=write)
    os.close(write)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 1


def test_an_interrupt_ends_in_one_sentence(model: str) -> None:
    words = ("--ignore-eos", "--temperature", "1", "--max-tokens", "220", "--compare", "--threads", "1")
    # a suite that runs in the background of a shell ignores the signal, and so would its children
    heeding = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    with spawn("generate", "hi", "-m", model, *words, preexec_fn=heeding) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "error: interrupted; nothing was left half-written."
    assert "Traceback" not in errors


def test_without_a_network_one_sentence_and_no_file(tmp_path: Path) -> None:
    home = tmp_path / "home"
    nowhere = "http://127.0.0.1:9"
    environment = {
        "OUTRIDER_HOME": str(home), "HF_ENDPOINT": nowhere, "PIP_INDEX_URL": f"{nowhere}/simple", "PIP_RETRIES": "0",
        "UV_INDEX_URL": f"{nowhere}/simple", "UV_DEFAULT_INDEX": f"{nowhere}/simple", "UV_HTTP_RETRIES": "0",
        "PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1", "PIP_NO_CACHE_DIR": "1", "UV_NO_CACHE": "1",
    }  # fmt: skip
    pulls = [spawn("models", "pull", name, env=environment) for name in ("smollm2", "nobody/nothing")]
    for process in pulls:
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, output) == (1, "")
        assert len(errors.splitlines()) == 1
        assert errors.startswith("error: ")
        assert "check the network" in errors
    assert [path for path in home.rglob("*") if path.is_file()] == []
