"""`outrider replay record`: let a model write the texts that are replayed later."""

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.console import note, progress_bar, waiting
from outrider.cli.options import Device, Dtype, Implementation, Model, Threads

__all__ = ["command"]

_PROMPTS = "Prompts"
_SAMPLING = "Sampling"


def command(
    prompts: Annotated[Path, typer.Option(help="File of prompts: lines, or JSON in one of the field's formats.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File of records; one that exists is continued.")],
    model: Model = "smollm2",
    max_tokens: Annotated[int, typer.Option(min=1, help="Output tokens at most.")] = 128,
    runner_ups: Annotated[
        int, typer.Option(min=0, max=20, help="Most probable tokens kept at each position (for recycling).")
    ] = 0,
    batch: Annotated[int, typer.Option(min=1, help="Texts that are written at once.")] = 8,
    drafter: Annotated[
        str, typer.Option("--drafter", "-d", help="Makes it faster; none for plain decoding. The texts are the same.")
    ] = "ngram",
    task: Annotated[str | None, typer.Option(help="Only prompts of this task.", rich_help_panel=_PROMPTS)] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Prompts at most.", rich_help_panel=_PROMPTS)] = None,
    per_task: Annotated[
        int | None, typer.Option(min=1, help="Prompts of each task at most.", rich_help_panel=_PROMPTS)
    ] = None,
    predict_input: Annotated[
        bool,
        typer.Option(
            "--predict-input",
            metavar="",
            help="Keep the text to be changed as prediction (edits).",
            rich_help_panel=_PROMPTS,
        ),
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", metavar="", help="Leave the chat template out.", rich_help_panel=_PROMPTS)
    ] = False,
    temperature: Annotated[
        float, typer.Option(help="0 takes the most probable token.", rich_help_panel=_SAMPLING)
    ] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k most probable tokens.", rich_help_panel=_SAMPLING)] = 0,
    top_p: Annotated[float, typer.Option(help="Keep this much probability.", rich_help_panel=_SAMPLING)] = 1.0,
    seed: Annotated[
        int | None, typer.Option(help="Seed of every text; drawn for each if left out.", rich_help_panel=_SAMPLING)
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", metavar="", help="Go on past end-of-text tokens.", rich_help_panel=_SAMPLING)
    ] = False,
    dtype: Dtype = "auto",
    device: Device = "auto",
    implementation: Implementation = "auto",
    threads: Threads = None,
) -> None:
    """Let a model answer prompts and record what it wrote, token by token; an interrupted run can be continued."""
    from outrider.cli.loading import Loading, load
    from outrider.core.params import SamplingParams
    from outrider.workloads import encode_item, encode_prediction, read_prompts

    workload = read_prompts(prompts, task=task, limit=limit, per_task=per_task, predict_input=predict_input)
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        ignore_eos=ignore_eos,
        max_tokens=max_tokens,
        logprobs=runner_ups or None,
    )
    loaded = load(
        model, Loading(dtype=dtype, device=device, implementation=implementation, threads=threads), (drafter,)
    )
    from outrider.engine.config import EngineConfig
    from outrider.engine.generate import build_engine
    from outrider.replay.record import Prompt, record, source_of
    from outrider.replay.writer import RecordWriter

    with waiting("preparing prompts"):
        engine = build_engine(loaded, drafters=(drafter,), config=EngineConfig(max_running=batch))
        source = source_of(model, engine, params)
        asked = [
            Prompt(
                item.id,
                item.task,
                encode_item(loaded.tokenizer, item, raw=raw),
                encode_prediction(loaded.tokenizer, item),
            )
            for item in workload
        ]
    with RecordWriter(output, source, max_tokens, runner_ups) as writer:
        if writer.damage:
            note(f"{writer.damage}.")
        with progress_bar("recording", len(asked)) as tick:
            too_long = record(engine, asked, params, writer, source, tick=tick)
        num_held = sum(prompt.id in writer.done for prompt in asked)
    if too_long:
        note(f"left out, as they do not fit the context: prompts {', '.join(too_long)}.")
    note(f"texts recorded: {len(asked) - num_held - len(too_long)}, there already: {num_held}.")
