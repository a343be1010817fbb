"""What `outrider generate --prompts` does: all prompts of a file together, the texts in the file's order.

This module knows prompts and results; scheduling is the engine's. Invariant: each prompt has its texts, or its error,
in its own place.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from outrider.cli.console import fail, note, progress_bar, waiting
from outrider.cli.figures import document
from outrider.cli.job import Job
from outrider.cli.loading import load
from outrider.cli.options import print_json
from outrider.cli.writing import print_text
from outrider.core.coins import fresh_seed
from outrider.core.params import SamplingParams
from outrider.engine.engine import Engine
from outrider.engine.generate import Generation, build_engine, collect, default_params
from outrider.engine.outbox import TextEvent
from outrider.engine.request import Request
from outrider.engine.stats import SpecStats
from outrider.errors import GenerationError, InvalidRequestError
from outrider.models.loading import LoadedModel
from outrider.workloads.base import PromptItem, Workload
from outrider.workloads.encode import encode_item, encode_prediction

__all__ = ["answer"]


def answer(job: Job, workload: Workload) -> None:
    """Do the job for every prompt of a file.

    Raises:
        OutriderError: a model cannot be used, a prompt does not fit, or a text failed; the others are printed first.
    """
    loaded = load(job.model, job.loading, job.drafters)
    params = default_params(loaded.defaults, **{"seed": fresh_seed()} | job.sampling)
    with waiting("preparing prompts"):
        engine = build_engine(loaded, drafters=job.drafters, policy=job.policy, config=job.config())
        requests = [request for item in workload for request in _submit(engine, loaded, job, item, params)]
    started = time.perf_counter()
    failed: GenerationError | None = None
    with progress_bar("writing", len(requests)) as tick:
        try:
            results = collect(engine, requests, on_event=lambda event: _count(event, tick))
        except GenerationError as error:
            results, failed = [result for result in error.results if isinstance(result, Generation)], error
    seconds = time.perf_counter() - started
    groups = [results[first : first + params.n] for first in range(0, len(results), params.n)]
    if job.as_json:
        print_json([_document(job, item, group, params, engine) for item, group in zip(workload, groups, strict=True)])
    else:
        for result in results:
            print_text(result.text)
        _summary(workload, results, seconds, job)
    for item, group in zip(workload, groups, strict=True):
        for result in group:
            if result.error is not None and not job.as_json:
                fail(f"prompt {item.id}: {result.error}")
    if failed is not None:
        raise GenerationError(f"{sum(r.error is not None for r in results)} of {len(results)} texts failed; see above.")


def _submit(
    engine: Engine, loaded: LoadedModel, job: Job, item: PromptItem, params: SamplingParams
) -> Sequence[Request]:
    """Queue one prompt."""
    if job.system is not None:
        item = replace(item, messages=({"role": "system", "content": job.system}, *item.messages))
    try:
        tokens = encode_item(loaded.tokenizer, item, raw=job.raw)
        expected = encode_prediction(loaded.tokenizer, item) if engine.drafters.needs.prediction else None
        return engine.submit(tokens, params, job.speculation(), prediction=expected)
    except InvalidRequestError as error:
        raise type(error)(f"prompt {item.id}: {error}") from error


def _count(event: TextEvent, tick: Any) -> None:
    if event.event.finish_reason is not None:
        tick()


def _document(
    job: Job, item: PromptItem, results: Sequence[Generation], params: SamplingParams, engine: Engine
) -> dict[str, Any]:
    """One prompt's texts with their figures."""
    if engine.tokenizer is None:
        raise RuntimeError("an engine made from a loaded model has a tokenizer")
    failures = dict(engine.drafters.num_failures)
    errors = [result.error for result in results if result.error is not None]
    named = {"id": item.id, "task": item.task, "error": errors[0] if errors else None}
    return named | document(job, results, params, None, failures, engine.tokenizer)


def _summary(workload: Workload, results: Sequence[Generation], seconds: float, job: Job) -> None:
    """A line of figures about all texts."""
    stats = sum((result.stats for result in results), SpecStats())
    tokens = sum(len(result.tokens) for result in results)
    parts = [f"{len(workload)} prompts", f"{tokens} tokens", f"{tokens / seconds:.1f} tokens/s together"]
    parts.append(f"{stats.block_efficiency:.2f} tokens a target pass")
    parts.append(f"acceptance {stats.acceptance_rate:.2f}" if stats.drafted else "nothing drafted")
    if results and not results[0].is_exact:
        parts.append(f"approximate: rule {job.rule} does not keep the model's law")
    note(" · ".join(parts))
