"""Options that several subcommands share, and what is made of them."""

import contextlib
import gc
import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from outrider.cli.console import waiting

__all__ = [
    "DRAFTING",
    "SAMPLING",
    "Device",
    "Dtype",
    "FrequencyPenalty",
    "Implementation",
    "Json",
    "Length",
    "Memory",
    "MinP",
    "Model",
    "PresencePenalty",
    "Quantize",
    "Raw",
    "RepetitionPenalty",
    "Temperature",
    "Threads",
    "TopK",
    "TopP",
    "Tree",
    "print_json",
    "starting",
]

Model = Annotated[str, typer.Option("--model", "-m", help="smollm2, a model folder, a .gguf file or a hub name.")]
Dtype = Annotated[
    str,
    typer.Option(
        help="auto, float32, bfloat16 or float16; auto keeps the blocks of a GGUF file where it can, "
        "and multiplies integers."
    ),
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
SAMPLING = "Sampling (default: the model's own settings)"
DRAFTING = "Speculation"

Temperature = Annotated[float | None, typer.Option(help="0 takes the most probable token.", rich_help_panel=SAMPLING)]
TopK = Annotated[int | None, typer.Option(help="Keep the k most probable tokens.", rich_help_panel=SAMPLING)]
TopP = Annotated[float | None, typer.Option(help="Keep this much probability.", rich_help_panel=SAMPLING)]
MinP = Annotated[float | None, typer.Option(help="Keep tokens with this share of the best.", rich_help_panel=SAMPLING)]
RepetitionPenalty = Annotated[
    float | None, typer.Option(help="Divides logits of used tokens; 1 is off.", rich_help_panel=SAMPLING)
]
PresencePenalty = Annotated[
    float | None, typer.Option(help="Taken from logits of tokens in the output.", rich_help_panel=SAMPLING)
]
FrequencyPenalty = Annotated[
    float | None, typer.Option(help="The same for each time a token was used.", rich_help_panel=SAMPLING)
]
Length = Annotated[int | None, typer.Option(help="Draft tokens a step at most.", rich_help_panel=DRAFTING)]
Tree = Annotated[
    str | None,
    typer.Option(
        metavar="<width>x<nodes>",
        help="Draft trees instead of chains, such as 3x16: children of a node and nodes of a step at most.",
        rich_help_panel=DRAFTING,
    ),
]
Raw = Annotated[bool, typer.Option("--raw", metavar="", help="Go on from the very text, without a chat template.")]


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
