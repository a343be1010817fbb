"""What `outrider certify` does once its options are checked: run what is missing, write it down, show the verdict."""

import hashlib
import sys
from dataclasses import asdict
from typing import Any

from outrider.bench.certificate import make_document, write
from outrider.bench.certify import Ledger, Subject, parts
from outrider.bench.provenance import file_hashes, machine, now, versions
from outrider.cli.certify_job import CertifyJob
from outrider.cli.console import note, print_rows, progress_bar, waiting
from outrider.cli.loading import load
from outrider.cli.options import print_json
from outrider.cli.speculating import check_drafters
from outrider.core.params import SamplingParams
from outrider.engine.generate import build_engine, default_params
from outrider.errors import InvalidRequestError
from outrider.models.loading import LoadedModel, pull_model
from outrider.workloads import encode_item

__all__ = ["run"]


def run(job: CertifyJob, *, as_json: bool) -> bool:
    """Audit, or go on auditing, and show the certificate.

    Returns:
        Whether no claim failed.

    Raises:
        OutriderError: a model or the folder cannot be used, or a request failed; what was found is kept.
    """
    loaded = load(job.model, job.loading, job.drafters)
    params = default_params(loaded.defaults, **job.sampling)
    with waiting("reading the models' files"):
        settings = _settings(job, loaded, params)
    ledger = Ledger(job.out, settings, lambda: {"date": now(), "versions": versions(), "machine": machine()})
    subject = _subject(job, loaded, params, ledger)
    is_complete = False
    try:
        _fill(ledger, subject)
        is_complete = True
    finally:
        document = make_document(ledger, subject.speculation.rule, is_complete=is_complete)
        paths = write(document, job.out)
        if not is_complete:
            note(f"what was found is kept in {job.out}; the same command goes on from there.")
    _show(document, as_json=as_json)
    for path in paths:
        note(f"written: {path}")
    return document["is_lossless"] is True


def _fill(ledger: Ledger, subject: Subject) -> None:
    """Run the parts that are missing."""
    number_of_parts = sum(1 for _ in _names(ledger, subject))
    with progress_bar("certifying", number_of_parts) as tick:
        for kind, name, answer in parts(subject, ledger.parts):
            if name not in ledger.parts[kind]:
                ledger.keep(kind, name, answer())
            tick()


def _names(ledger: Ledger, subject: Subject) -> list[str]:
    """A name for each part; those of texts that do not exist yet are counted as the parts that they will be."""
    known: dict[str, Any] = {"paths": _Any()} | {kind: {} for kind in ledger.parts if kind != "paths"}
    return [name for _, name, _ in parts(subject, known)]


class _Any:
    """Stands for answers that are only counted."""

    def __getitem__(self, _key: Any) -> Any:
        return [{"tokens": [], "before_draft": None}] * 4


def _subject(job: CertifyJob, loaded: LoadedModel, params: SamplingParams, ledger: Ledger) -> Subject:
    prompts = []
    for item in job.workload():
        tokens = encode_item(loaded.tokenizer, item, raw=job.raw)
        if len(tokens) + (params.max_tokens or 0) < loaded.target.context_length:
            prompts.append((item.id, tokens))
        else:
            ledger.skip(item.id, f"{len(tokens)} tokens and the output do not fit {loaded.target.context_length}")
    if not prompts:
        raise InvalidRequestError("no prompt fits the context of the model; give shorter prompts.")
    with waiting("preparing drafters"):
        return Subject(
            on=build_engine(loaded, drafters=job.drafters, policy=job.policy, progress=False),
            off=build_engine(loaded, drafters=(), progress=False),
            speculation=job.speculation(),
            params=params,
            prompts=prompts,
            samples=job.samples,
            prefixes=min(job.prefixes, len(prompts)),
            power=job.power,
        )


def _settings(job: CertifyJob, loaded: LoadedModel, params: SamplingParams) -> dict[str, Any]:
    """Everything that changes an answer."""
    import torch

    sampling = {name: value for name, value in asdict(params).items() if value != getattr(SamplingParams(), name)}
    packages = versions()
    data = job.prompts.read_bytes() if job.prompts is not None else b""
    return {
        "model": loaded.name,
        "model_files": file_hashes(loaded.path),
        "drafters": list(job.drafters),
        "draft_model_files": {name: file_hashes(pull_model(name)) for name in check_drafters(job.drafters)},
        "rule": job.rule,
        "policy": job.policy,
        "length": job.length,
        "tree": job.tree,
        "sampling": {"temperature": params.temperature} | sampling,
        "is_greedy": params.is_greedy,
        "is_invariant": bool(getattr(loaded.target, "invariant", False)),
        "weights": loaded.target.weights,
        "quantised": None if loaded.loss is None else asdict(loaded.loss),
        "prompts": {"name": str(job.prompts and job.prompts.name), "sha256": hashlib.sha256(data).hexdigest()},
        "limit": job.limit,
        "samples": job.samples,
        "prefixes": job.prefixes,
        "power": job.power,
        "raw": job.raw,
        "device": loaded.target.device.type,
        "threads": torch.get_num_threads(),
        "machine": machine()["cpu"],
        "torch": packages["torch"],
        "outrider": packages["outrider"],
    }


def _show(document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(document)
        return
    sys.stdout.write(document["verdict"] + "\n\n")
    print_rows([[claim["status"], claim["text"], claim["detail"]] for claim in document["claims"]])
    missed = [name for name, answer in document["faults"].items() if answer["check"] is None]
    seen = len(document["faults"]) - len(missed)
    sys.stdout.write(f"\n{seen} planted faults were seen by name; the page lists them and what was not checked.\n")
