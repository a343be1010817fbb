"""What `outrider bench` does once its options are checked: measure what is missing, write it down, show it."""

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from outrider.bench.journal import Journal, read_document
from outrider.bench.load import run_loads
from outrider.bench.local import Local, Prompt
from outrider.bench.memory import PeakMemory
from outrider.bench.provenance import file_hashes, machine, now, versions
from outrider.bench.rounds import Round
from outrider.bench.table import load_table, sentences, summary_tables
from outrider.cli.bench_job import BenchJob
from outrider.cli.console import note, progress_bar, waiting
from outrider.cli.loading import load
from outrider.cli.options import print_json
from outrider.cli.speculating import check_drafters
from outrider.core.params import SamplingParams
from outrider.engine.calibrate import measure_passes
from outrider.engine.generate import default_params
from outrider.errors import InvalidRequestError
from outrider.models.loading import LoadedModel, pull_model
from outrider.workloads import PromptItem, encode_item, encode_prediction

__all__ = ["run", "show_stored"]

_WIDTHS = (1, 2, 4, 8, 16)
_CONTEXT = 256


def run(job: BenchJob, *, html: bool, as_json: bool) -> None:
    """Measure, or go on measuring, and show the result.

    Raises:
        OutriderError: the model, a server or the folder cannot be used, or a request failed; what was measured is kept.
    """
    measure = _measure_model if job.endpoint is None else _measure_server
    journal: list[Journal] = []
    is_complete = False
    try:
        measure(job, journal.append)
        is_complete = True
    finally:
        if journal and journal[0].rounds:
            document = journal[0].finish(is_complete=is_complete)
            if not is_complete:
                note(f"{len(journal[0].rounds)} rounds are kept in {job.out}; the same command goes on from there.")
    if not journal[0].rounds:
        raise InvalidRequestError("no prompt fits the context of the model; give shorter prompts.")
    _show(document, journal[0].rounds, job.out, html=html, as_json=as_json)


def show_stored(path: Path, *, html: bool, as_json: bool) -> None:
    """Show a stored run again.

    Raises:
        InvalidRequestError: there is none, or it is damaged.
    """
    document, rounds = read_document(path)
    _show(document, rounds, path if path.is_dir() else path.parent, html=html, as_json=as_json)


def _measure_model(job: BenchJob, opened: Callable[[Journal], None]) -> None:
    items = job.items()
    loaded = load(job.model or "smollm2", job.loading, job.drafters_of_arms())
    with waiting("reading the model's files"):
        settings = _settings(job, items) | _model_settings(job, loaded)
    journal = Journal(job.out, settings, lambda: _provenance(loaded))
    opened(journal)
    prompts = _prompts(job, loaded, items, journal)
    levels, sampling = job.levels(), _sampling(job, loaded)
    if levels and max(levels) > len(prompts):
        raise InvalidRequestError(
            f"--concurrency {max(levels)} needs as many prompts; there are {len(prompts)} that fit the context."
        )
    with waiting("preparing drafters"):
        local = Local(loaded, job.arms(), job.speculation_rule(), max_running=max(16, *levels, 0))
    watcher = PeakMemory(uses_cuda=loaded.target.device.type == "cuda")
    with watcher as memory, progress_bar("measuring", len(prompts) * len(sampling)) as tick:
        for _ in journal.rounds:
            tick()
        for measured in local.rounds(prompts, sampling, done=journal.done, memory=memory, tick=tick):
            journal.add_round(measured)
    with progress_bar("many at once", len(sampling) * len(levels) * 2 * len(local.kinds)) as tick:
        for load_run in run_loads(local, prompts, sampling, levels, done=list(journal.loads), tick=tick):
            journal.add_load(load_run)


def _measure_server(job: BenchJob, opened: Callable[[Journal], None]) -> None:
    from outrider.bench.remote import Remote, Side

    items = job.items()
    on = Side(job.endpoint or "", job.body("on_body"))
    off = Side(job.endpoint_off or job.endpoint or "", job.body("off_body"))
    remote = Remote(on, off, job.model)
    try:
        settings = _settings(job, items) | {"model": remote.model, "on": asdict(on), "off": asdict(off)}
        journal = Journal(job.out, settings, lambda: {"date": now(), "versions": versions()})
        opened(journal)
        with progress_bar("measuring", len(items) * len(job.temperatures())) as tick:
            for _ in journal.rounds:
                tick()
            for measured in remote.rounds(
                items,
                job.temperatures(),
                max_tokens=job.max_tokens,
                seed=job.seed,
                raw=job.raw,
                done=journal.done,
                tick=tick,
            ):
                journal.add_round(measured)
    finally:
        remote.close()


def _show(document: dict[str, Any], rounds: list[Round], folder: Path, *, html: bool, as_json: bool) -> None:
    if html:
        from outrider.bench.page import render_page

        page = folder / "report.html"
        page.write_text(render_page(document, rounds), encoding="utf-8")
        note(f"page: {page}")
    if as_json:
        print_json({name: value for name, value in document.items() if name != "rounds"} | {"folder": str(folder)})
        return
    console = Console() if sys.stdout.isatty() else Console(width=1000)
    for table in summary_tables(document["summary"]):
        console.print(table)
    if document["loads"]:
        console.print(load_table(document["loads"]))
    for text in sentences(document):
        note(text)


def _settings(job: BenchJob, items: list[tuple[str, PromptItem]]) -> dict[str, Any]:
    """What changes the measurement, whatever is measured."""
    return {
        "prompts": [entry for path in job.prompts for entry in file_hashes(path)],
        "num_prompts": len(items),
        "limit": job.limit,
        "per_task": job.per_task,
        "task": job.task,
        "temperature": job.temperatures(),
        "max_tokens": job.max_tokens,
        "seed": job.seed,
        "raw": job.raw,
    }


def _model_settings(job: BenchJob, loaded: LoadedModel) -> dict[str, Any]:
    """What changes the measurement of a model; the machine is part of it."""
    import torch

    drafts = {name: file_hashes(pull_model(name)) for name in check_drafters(job.drafters_of_arms())}
    packages = versions()
    return {
        "model": loaded.name,
        "model_files": file_hashes(loaded.path),
        "drafters": [asdict(arm) for arm in job.arms()],
        "draft_model_files": drafts,
        "rule": job.speculation_rule().value,
        "use_prediction": job.use_prediction,
        "ignore_eos": job.ignore_eos,
        "concurrency": job.levels(),
        "weights": loaded.target.weights,
        "quantised": None if loaded.loss is None else asdict(loaded.loss),
        "device": loaded.target.device.type,
        "threads": torch.get_num_threads(),
        "machine": machine()["cpu"],
        "torch": packages["torch"],
        "outrider": packages["outrider"],
    }


def _provenance(loaded: LoadedModel) -> dict[str, Any]:
    context = min(_CONTEXT, loaded.target.context_length - max(_WIDTHS))
    with waiting("measuring passes"):
        costs = measure_passes(loaded.target, _WIDTHS, [context], repeats=5) if context > 0 else []
    return {
        "date": now(),
        "versions": versions(),
        "machine": machine(),
        "family": loaded.config.family,
        "weight_bytes": loaded.target.weight_bytes,
        "passes": [asdict(cost) for cost in costs],
    }


def _prompts(job: BenchJob, loaded: LoadedModel, items: list[tuple[str, PromptItem]], journal: Journal) -> list[Prompt]:
    """The prompts that fit the context, as tokens; the others are noted."""
    prompts = []
    for number, (name, item) in enumerate(items):
        tokens = encode_item(loaded.tokenizer, item, raw=job.raw)
        prediction = encode_prediction(loaded.tokenizer, item)
        longest = max(len(tokens), len(prediction or ()))
        if longest < loaded.target.context_length:
            prompts.append(Prompt(name, item.task, tokens, prediction, number))
        else:
            journal.skip(name, f"{longest} tokens do not fit the context of {loaded.target.context_length}")
    return prompts


def _sampling(job: BenchJob, loaded: LoadedModel) -> list[SamplingParams]:
    given = {"max_tokens": job.max_tokens, "seed": job.seed, "ignore_eos": job.ignore_eos}
    return [default_params(loaded.defaults, temperature=value, **given) for value in job.temperatures()]
