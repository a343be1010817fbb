"""What `outrider generate` does once its options are read: load, stream, compare, sum up."""

import json
import sys
from dataclasses import dataclass
from typing import Any

import torch

from outrider.cli.comparing import compare
from outrider.cli.writing import Writer, document, summary
from outrider.core.coins import fresh_seed
from outrider.core.params import Rule, SamplingParams, Speculation
from outrider.drafters.registry import check_drafter
from outrider.engine.generate import build_engine, collect, default_params, encode_prompt
from outrider.errors import InvalidRequestError
from outrider.models.loading import load_model
from outrider.policies.registry import build_policy

__all__ = ["Job", "run"]


@dataclass(frozen=True, slots=True)
class Job:
    """The options of one call, as they were given."""

    prompt: str
    model: str
    system: str | None
    raw: bool
    sampling: dict[str, Any]
    drafters: tuple[str, ...]
    policy: str
    length: int | None
    rule: str
    compare: bool
    show_draft: bool
    stats: bool
    as_json: bool
    dtype: str
    device: str
    threads: int | None


def run(job: Job) -> None:
    """Do the job; whatever can be refused is refused before weights are read."""
    speculation = _speculation(job)
    given = {name: value for name, value in job.sampling.items() if value is not None}
    given.setdefault("seed", fresh_seed())
    SamplingParams(**given)
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    loaded = load_model(job.model, dtype=job.dtype, device=job.device)
    engine = build_engine(loaded, drafters=job.drafters, policy=job.policy)
    params = default_params(loaded.defaults, **given)
    prompt = encode_prompt(loaded.tokenizer, job.prompt, raw=job.raw, system=job.system)
    writer = None if job.as_json else Writer(loaded.tokenizer, show_draft=job.show_draft)
    result = collect(engine, engine.submit(prompt, params, speculation), on_event=writer)[0]
    comparison = compare(engine, prompt, params, speculation) if job.compare else None
    if job.as_json:
        sys.stdout.write(json.dumps(document(job.model, result, params, comparison), indent=2) + "\n")
    else:
        summary(result, comparison, show_all=job.stats)


def _speculation(job: Job) -> Speculation:
    """Read the words about speculation; all of them are checked here."""
    rules = {rule.value: rule for rule in Rule}
    if job.rule not in rules:
        raise InvalidRequestError(f"--rule is {job.rule!r}; choose one of {', '.join(rules)}.")
    for text in job.drafters:
        check_drafter(text)
    build_policy(job.policy)
    return Speculation(rule=rules[job.rule], length=job.length)
