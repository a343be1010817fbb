"""`outrider certify`: a certificate of losslessness for someone's own models, rule and settings."""

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
    Json,
    Length,
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
)

__all__ = ["command"]

_AUDIT = "What is checked"


def command(
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", "-p", metavar="<path>", help="A file of prompts, as for bench."),
    ] = None,
    model: Model = "smollm2",
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            "-d",
            metavar="<text>",
            help="As in generate; may be repeated. Default: ngram.",
            rich_help_panel=DRAFTING,
        ),
    ] = None,
    rule: Annotated[
        str,
        typer.Option(help="match, token, block, traversal or typical (approximate).", rich_help_panel=DRAFTING),
    ] = "match",
    policy: Annotated[str, typer.Option(help="As in generate.", rich_help_panel=DRAFTING)] = "fixed",
    length: Length = None,
    tree: Tree = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: RepetitionPenalty = None,
    presence_penalty: PresencePenalty = None,
    frequency_penalty: FrequencyPenalty = None,
    seed: Annotated[
        int, typer.Option(help="Of the first prompt; the next has the next seed.", rich_help_panel=SAMPLING)
    ] = 0,
    max_tokens: Annotated[int, typer.Option(help="Output tokens at most.", rich_help_panel=_AUDIT)] = 64,
    limit: Annotated[int, typer.Option(help="Prompts at most.", rich_help_panel=_AUDIT)] = 20,
    samples: Annotated[
        int, typer.Option(help="Texts at each prefix whose law is tested.", rich_help_panel=_AUDIT)
    ] = 2000,
    prefixes: Annotated[int, typer.Option(help="Prompts that serve as such prefixes.", rich_help_panel=_AUDIT)] = 2,
    power: Annotated[
        float,
        typer.Option(help="Chance of seeing a difference of the stated size.", rich_help_panel=_AUDIT),
    ] = 0.99,
    raw: Raw = False,
    out: Annotated[Path, typer.Option(help="Folder of the certificate; an unfinished one goes on.")] = Path(
        "certificate"
    ),
    as_json: Json = False,
    dtype: Dtype = "auto",
    quantize: Quantize = "none",
    device: Device = "auto",
    implementation: Implementation = "auto",
    threads: Threads = None,
) -> None:
    """Certify that speculation leaves your model's text alone, or show where it does not.

    Enumerates the rule, plants known faults, runs your prompts with speculation on and off, and tests the law of
    sampled texts. Leaves certificate.html and certificate.json; ends with status 1 where a claim fails.
    """
    from outrider.cli.certify_job import CertifyJob
    from outrider.cli.loading import Loading
    from outrider.cli.options import starting

    sampling = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "seed": seed,
        "max_tokens": max_tokens,
    }
    job = CertifyJob(
        prompts=prompts,
        model=model,
        drafters=tuple(drafter or ("ngram",)),
        rule=rule,
        policy=policy,
        length=length,
        tree=tree,
        sampling={name: value for name, value in sampling.items() if value is not None},
        limit=limit,
        samples=samples,
        prefixes=prefixes,
        power=power,
        raw=raw,
        out=out,
        loading=Loading(dtype, quantize, device, implementation, threads),
    )
    job.check()
    with starting():
        from outrider.cli.certifying import run

    if not run(job, as_json=as_json):
        raise typer.Exit(1)
