"""`outrider generate`: text from a model, drafted and verified, with its figures."""

import sys
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["command"]

_SAMPLING = "Sampling (default: the model's own settings)"
_DRAFTING = "Speculation"
_OUTPUT = "Output"


def command(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; left out, it is read from --file or stdin.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from a file; - is stdin.")] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", help="smollm2, a model folder, a .gguf file or a hub name.")
    ] = ("smollm2"),
    system: Annotated[str | None, typer.Option(help="A system message before the prompt.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Go on from the very text, without a chat template.")] = False,
    max_tokens: Annotated[int, typer.Option(help="Output tokens at most.")] = 256,
    temperature: Annotated[
        float | None, typer.Option(help="0 takes the most probable token.", rich_help_panel=_SAMPLING)
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Keep the k most probable tokens.", rich_help_panel=_SAMPLING)
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep this much probability.", rich_help_panel=_SAMPLING)] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Keep tokens with this share of the best.", rich_help_panel=_SAMPLING)
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Divides logits of used tokens; 1 is off.", rich_help_panel=_SAMPLING)
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(help="Taken from logits of tokens in the output.", rich_help_panel=_SAMPLING)
    ] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(help="The same for each time a token was used.", rich_help_panel=_SAMPLING)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same text.", rich_help_panel=_SAMPLING)] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this string; may be repeated.", rich_help_panel=_SAMPLING)
    ] = None,
    min_tokens: Annotated[
        int | None, typer.Option(help="No end before this many tokens.", rich_help_panel=_SAMPLING)
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past end-of-text tokens.", rich_help_panel=_SAMPLING)
    ] = False,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            "-d",
            help="none, ngram[:max=4,min=2] or draft_model:model=NAME; may be repeated. Default: ngram.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    policy: Annotated[
        str, typer.Option(help="heuristic[:start=4,max=16] or fixed[:length=5].", rich_help_panel=_DRAFTING)
    ] = "heuristic",
    length: Annotated[int | None, typer.Option(help="Draft tokens a step at most.", rich_help_panel=_DRAFTING)] = None,
    rule: Annotated[
        str, typer.Option(help="match (same text as without drafts) or token (same law).", rich_help_panel=_DRAFTING)
    ] = "match",
    compare: Annotated[
        bool, typer.Option("--compare", help="Also decode plainly, and show the speed-up.", rich_help_panel=_OUTPUT)
    ] = False,
    show_draft: Annotated[
        bool, typer.Option("--show-draft", help="Colour each token by who wrote it.", rich_help_panel=_OUTPUT)
    ] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Show acceptance by position, times and rows.", rich_help_panel=_OUTPUT)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document at the end instead.", rich_help_panel=_OUTPUT)
    ] = False,
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="Processor threads; default as PyTorch chooses.")] = None,
) -> None:
    """Write text with a model: draft tokens cheaply, verify them in one pass, keep what the model itself says.

    The text goes to standard output, everything about it to standard error.
    """
    from outrider.cli.generating import Job, run

    sampling = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "seed": seed,
        "stop": stop,
        "min_tokens": min_tokens,
        "ignore_eos": ignore_eos,
    }
    run(
        Job(
            prompt=_read_prompt(prompt, file),
            model=model,
            system=system,
            raw=raw,
            sampling=sampling,
            drafters=tuple(drafter or ("ngram",)),
            policy=policy,
            length=length,
            rule=rule,
            compare=compare,
            show_draft=show_draft,
            stats=stats,
            as_json=as_json,
            dtype=dtype,
            device=device,
            threads=threads,
        )
    )


def _read_prompt(prompt: str | None, file: Path | None) -> str:
    from outrider.errors import InvalidRequestError

    if prompt is not None and file is not None:
        raise InvalidRequestError(f"both a prompt and --file {file} are given; give one of them.")
    if prompt is not None:
        return prompt
    if file is None and sys.stdin.isatty():
        raise InvalidRequestError("prompt is missing; give it as an argument, with --file, or on standard input.")
    try:
        if file is None or str(file) == "-":
            return sys.stdin.buffer.read().decode()
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(
            f"--file {file} cannot be read ({error.strerror}); give a readable text file."
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"--file {file or '-'} is no UTF-8 text; convert it first.") from error
