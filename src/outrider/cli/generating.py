"""What `outrider generate` does once its options are checked: load, stream, compare, sum up."""

import sys

from outrider.cli.comparing import compare
from outrider.cli.console import waiting
from outrider.cli.figures import document, summary
from outrider.cli.job import Job
from outrider.cli.options import load, print_json
from outrider.cli.writing import Writer
from outrider.core.coins import fresh_seed
from outrider.engine.generate import build_engine, collect, default_params, encode_prompt
from outrider.models.loading import pull_model

__all__ = ["run"]


def run(job: Job) -> None:
    """Do the job.

    Raises:
        OutriderError: a model cannot be used, the prompt does not fit, or the run failed.
    """
    for name in job.draft_models():
        pull_model(name, progress=sys.stderr.isatty())
    loaded = load(job.model, dtype=job.dtype, device=job.device, implementation=job.implementation, threads=job.threads)
    params = default_params(loaded.defaults, **{"seed": fresh_seed()} | job.sampling)
    prompt = encode_prompt(loaded.tokenizer, job.prompt, raw=job.raw, system=job.system)
    with waiting("preparing drafters"):
        engine = build_engine(loaded, drafters=job.drafters, policy=job.policy)
        requests = engine.submit(prompt, params, job.speculation())
    if job.as_json:
        result = collect(engine, requests)[0]
    else:
        with Writer(loaded.tokenizer, show_draft=job.show_draft) as writer:
            result = collect(engine, requests, on_event=writer)[0]
    comparison = compare(engine, prompt, params, job.speculation()) if job.compare else None
    if job.as_json:
        print_json(document(job, result, params, comparison))
    else:
        summary(result, params, comparison, rule=job.rule, show_all=job.stats)
