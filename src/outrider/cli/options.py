"""Options that several subcommands share, and what is made of them."""

import contextlib
import gc
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.console import note, waiting

if TYPE_CHECKING:
    from outrider.models.loading import LoadedModel

__all__ = [
    "Device",
    "Dtype",
    "Implementation",
    "Json",
    "Memory",
    "Model",
    "Quantize",
    "Threads",
    "load",
    "print_json",
    "starting",
]

Model = Annotated[str, typer.Option("--model", "-m", help="smollm2, a model folder, a .gguf file or a hub name.")]
Dtype = Annotated[
    str, typer.Option(help="auto, float32, bfloat16 or float16; auto keeps the blocks of a GGUF file where it can.")
]
Quantize = Annotated[
    str,
    typer.Option(
        metavar="<bits>",
        help="int4 or int8 cuts float weights on a CPU, auto takes the fewest bits that lose little; none.",
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Implementation = Annotated[str, typer.Option(help="auto, decoder or transformers.")]
Threads = Annotated[
    int | None, typer.Option(min=1, metavar="<int>", help="Processor threads; default as PyTorch chooses.")
]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="<size>", help="Memory for weights, caches and work together, such as 4GB; default what is free."
    ),
]
Json = Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON document instead of a table.")]


def load(
    name: str, *, dtype: str, device: str, implementation: str, threads: int | None, quantize: str = "none"
) -> "LoadedModel":
    """Load a model, with a bar while it is downloaded and a spinner while it is read.

    Raises:
        OutriderError: the model, its dtype, its device or its implementation cannot be used.
    """
    with starting():
        import torch

        from outrider.models.loading import load_model, pull_model
        from outrider.models.loading.load import check_dtype, check_implementation
        from outrider.models.loading.quantising import check_quantise

    check_dtype(dtype)
    check_implementation(implementation)
    check_quantise(quantize)

    if threads is not None:
        torch.set_num_threads(threads)
    pull_model(name, progress=sys.stderr.isatty())
    with starting(f"loading {name}"):
        loaded = load_model(
            name, dtype=dtype, device=device, implementation=implementation, quantize=quantize, progress=False
        )
    if loaded.loss is not None:
        note(f"{name}, {loaded.loss}")
    elif quantize != "none":
        note(f"{name} stays in bfloat16: fewer bits would lose too much")
    return loaded


@contextlib.contextmanager
def starting(label: str = "starting") -> Iterator[None]:
    """A spinner on a terminal while libraries and weights are read.

    They make many objects that stay, so the search for garbage is put off meanwhile and passes over them afterwards.
    """
    gc.disable()
    try:
        with waiting(label):
            yield
    finally:
        gc.freeze()
        gc.enable()


def print_json(document: Any) -> None:
    """Print one JSON document to standard output."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
