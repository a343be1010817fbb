"""Tiny models on disk, and ways to run the command line on them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from outrider.cli.app import app

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": 256,
}
_TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"


def run(*words: str, stdin: str | bytes | None = None) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(app, list(words), input=stdin)


def refusal(*words: str, stdin: str | bytes | None = None, status: int = 1) -> str:
    """Run a command line that must be refused; gives its one sentence."""
    result = run(*words, stdin=stdin)
    assert (result.exit_code, result.stdout) == (status, ""), result.output
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: "), result.stderr
    return lines[0].removeprefix("error: ")


def spawn(*words: str, **options: Any) -> subprocess.Popen[str]:
    """Start the command line in a process of its own."""
    source = Path(__file__).parents[2] / "src"
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"} | options.pop("env", {})
    code = "from outrider.cli import main; main()"
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([sys.executable, "-c", code, *words], text=True, env=environment, **pipes)


def write_model(path: Path, *, template: bool = True, **changes: Any) -> Path:
    """Write a random model of two layers that knows bytes and four special tokens.

    Args:
        path: the folder.
        template: whether it has a chat template.
        changes: of `config.json`.
    """
    import torch
    from safetensors.torch import save_file

    from outrider.models.loading.folder_config import config_from_folder
    from outrider.models.shapes import expected_shapes

    path.mkdir()
    values = _CONFIG | changes
    (path / "config.json").write_text(json.dumps(values))
    generator = torch.Generator().manual_seed(3)
    shapes = expected_shapes(config_from_folder(values, "test"))
    weights = {name: torch.randn(shape, generator=generator) / 8 for name, shape in shapes.items()}
    save_file({name: w.abs() if w.ndim == 1 else w for name, w in weights.items()}, path / "model.safetensors")
    _write_tokenizer(path, ["</s>", "<|user|>", "<|assistant|>", "<|system|>"], template)
    return path


def _write_tokenizer(path: Path, special: list[str], template: bool) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in special])
    backend.save(str(path / "tokenizer.json"))
    config = {"eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (path / "tokenizer_config.json").write_text(json.dumps(config | ({"chat_template": _TEMPLATE} if template else {})))
