"""What `outrider generate` does once its options are checked: load, stream, compare, sum up."""

from outrider.cli.comparing import compare
from outrider.cli.console import waiting
from outrider.cli.figures import document, summary
from outrider.cli.job import Job
from outrider.cli.loading import load
from outrider.cli.options import print_json
from outrider.cli.writing import Writer, print_text
from outrider.core.coins import fresh_seed
from outrider.engine.generate import build_engine, collect, default_params, encode_prediction, encode_prompt

__all__ = ["run"]


def run(job: Job) -> None:
    """Do the job.

    Raises:
        OutriderError: a model cannot be used, the prompt does not fit, or the run failed.
    """
    loaded = load(job.model, job.loading, job.drafters)
    params = default_params(loaded.defaults, **{"seed": fresh_seed()} | job.sampling)
    prompt = encode_prompt(loaded.tokenizer, job.prompt, raw=job.raw, system=job.system)
    expected = None if job.prediction is None else encode_prediction(loaded.tokenizer, job.prediction)
    with waiting("preparing drafters"):
        engine = build_engine(loaded, drafters=job.drafters, policy=job.policy, config=job.config())
        requests = engine.submit(prompt, params, job.speculation(), prediction=expected)
    if job.as_json or len(requests) > 1:  # several texts that grow at once cannot be written as they come
        results = collect(engine, requests)
    else:
        with Writer(loaded.tokenizer, show_draft=job.show_draft) as writer:
            results = collect(engine, requests, on_event=writer)
    comparison = compare(engine, prompt, params, job.speculation(), prediction=expected) if job.compare else None
    failures = dict(engine.drafters.num_failures)
    if job.as_json:
        print_json(document(job, results, params, comparison, failures, loaded.tokenizer))
        return
    for result in results:
        if len(results) > 1:
            print_text(result.text)
        summary(result, params, comparison, failures if job.stats else None, rule=job.rule)
