"""`outrider generate`: text from a model, drafted and verified, with its figures."""

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.options import (
    DRAFTING,
    SAMPLING,
    Device,
    Dtype,
    FrequencyPenalty,
    Implementation,
    Length,
    Memory,
    MinP,
    Model,
    PresencePenalty,
    Quantize,
    Raw,
    RepetitionPenalty,
    Temperature,
    Threads,
    TopK,
    TopP,
    Tree,
    starting,
)

__all__ = ["command"]

_OUTPUT = "Output"


def command(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; left out, it is read from --file or stdin.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from a file; - is stdin.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="<file>",
            help="Answer all prompts of a file together, in its order: a line each, JSON lines or a JSON list.",
        ),
    ] = None,
    model: Model = "smollm2",
    system: Annotated[str | None, typer.Option(help="A system message before the prompt.")] = None,
    raw: Raw = False,
    max_tokens: Annotated[int, typer.Option(help="Output tokens at most.")] = 256,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: RepetitionPenalty = None,
    presence_penalty: PresencePenalty = None,
    frequency_penalty: FrequencyPenalty = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same text.", rich_help_panel=SAMPLING)] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="<text>", help="End before this string; may be repeated.", rich_help_panel=SAMPLING),
    ] = None,
    min_tokens: Annotated[
        int | None, typer.Option(help="No end before this many tokens.", rich_help_panel=SAMPLING)
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", metavar="", help="Go on past end-of-text tokens.", rich_help_panel=SAMPLING)
    ] = False,
    n: Annotated[int, typer.Option("--n", help="Independent texts for the prompt.", rich_help_panel=SAMPLING)] = 1,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            "-d",
            metavar="<text>",
            help="none, ngram[:max=4,min=1], suffix, recycling, prediction or draft_model:model=NAME; may be repeated. "
            "Default: ngram, after prediction where there is one. All options: docs/drafters-and-policies.md.",
            rich_help_panel=DRAFTING,
        ),
    ] = None,
    prediction: Annotated[
        Path | None,
        typer.Option(metavar="<file>", help="A file with the output that you expect.", rich_help_panel=DRAFTING),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            help="heuristic[:start=4,max=16] or fixed[:length=5]. All options: docs/drafters-and-policies.md.",
            rich_help_panel=DRAFTING,
        ),
    ] = "heuristic",
    length: Length = None,
    tree: Tree = None,
    rule: Annotated[
        str,
        typer.Option(
            help="match (same text as without drafts); token, block (chains) or traversal (same law); typical "
            "(approximate: another law).",
            rich_help_panel=DRAFTING,
        ),
    ] = "match",
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", metavar="", help="Also decode plainly, and show the speed-up.", rich_help_panel=_OUTPUT
        ),
    ] = False,
    show_draft: Annotated[
        bool,
        typer.Option("--show-draft", metavar="", help="Colour each token by who wrote it.", rich_help_panel=_OUTPUT),
    ] = False,
    stats: Annotated[
        bool,
        typer.Option(
            "--stats", metavar="", help="Show acceptance by position, times and rows.", rich_help_panel=_OUTPUT
        ),
    ] = False,
    logprobs: Annotated[
        int | None,
        typer.Option(
            help="In --json: the model's own log probabilities of each token and so many rivals.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    echo: Annotated[
        bool, typer.Option("--echo", metavar="", help="Begin the text with the prompt.", rich_help_panel=_OUTPUT)
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", metavar="", help="Print one JSON document at the end instead.", rich_help_panel=_OUTPUT),
    ] = False,
    dtype: Dtype = "auto",
    quantize: Quantize = "none",
    device: Device = "auto",
    implementation: Implementation = "auto",
    threads: Threads = None,
    at_once: Annotated[
        int, typer.Option(min=1, metavar="<int>", help="With --prompts: texts that grow together.")
    ] = 16,
    memory: Memory = None,
) -> None:
    """Write text with a model: draft tokens cheaply, verify them in one pass, keep what the model itself says.

    The text goes to standard output, everything about it to standard error.
    """
    from outrider.cli.job import Job
    from outrider.cli.loading import Loading
    from outrider.cli.prompt import check_one_source, check_text, read_prediction, read_prompt
    from outrider.workloads.read import read_prompts

    check_one_source(prompt=prompt, file=file, prompts=prompts)
    text = "" if prompts is not None else read_prompt(prompt, file, raw=raw)
    for name, given in (("--system", system), *(("--stop", string) for string in stop or ())):
        check_text(name, given or "")
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
        "n": n,
        "logprobs": logprobs,
        "echo": echo,
    }
    job = Job(
        prompt=text,
        model=model,
        system=system,
        raw=raw,
        sampling={name: value for name, value in sampling.items() if value is not None},
        drafters=tuple(drafter or (("ngram",) if prediction is None else ("prediction", "ngram"))),
        prediction=None if prediction is None else read_prediction(prediction),
        policy=policy,
        length=length,
        tree=tree,
        rule=rule,
        compare=compare,
        show_draft=show_draft,
        stats=stats,
        as_json=as_json,
        loading=Loading(dtype, quantize, device, implementation, threads),
        prompts=prompts,
        at_once=at_once,
        memory=memory,
    )
    job.check()
    workload = None if prompts is None else read_prompts(prompts)
    with starting():  # imports the tensor library, so only what can be done comes here
        from outrider.cli.answering import answer
        from outrider.cli.generating import run

    if workload is None:
        run(job)
    else:
        answer(job, workload)
