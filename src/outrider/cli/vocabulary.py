"""`outrider models vocabulary`: the tokens that a draft model may propose, by their frequency in texts."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.console import note, waiting

__all__ = ["command"]


def command(
    name: Annotated[
        str, typer.Argument(help="The target: smollm2, a model folder, a .gguf file or a hub name.", show_default=False)
    ],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="files",
            help="Texts like those to come: .json and .jsonl hold prompts with their answers, as in bench; others are "
            "counted as they stand.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")],
    size: Annotated[int, typer.Option(min=1, metavar="<int>", help="Tokens wanted.")] = 32_768,
) -> None:
    """Choose the tokens that a draft model may propose, for the option vocabulary of draft_model.

    They are the special tokens and those that the texts use most, then the lowest ids. What is
    written does not change: a draft model whose head has fewer rows is faster, and never right
    about the other tokens.
    """
    from outrider.drafters.vocabulary import choose_tokens, write_vocabulary
    from outrider.models.loading import open_checkpoint
    from outrider.workloads import read_texts

    texts = [text for file in files for text in read_texts(file)]
    tokenizer = open_checkpoint(name, progress=sys.stderr.isatty()).load_tokenizer()
    with waiting("counting tokens"):
        choice = choose_tokens(texts, tokenizer, size)
    write_vocabulary(output, choice.ids, tokenizer)
    share = choice.num_covered / choice.num_tokens
    note(f"{size:,} of {len(tokenizer.tokens):,} tokens, {share:.2%} of the {choice.num_tokens:,} in the texts.")
