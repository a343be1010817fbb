"""outrider against llama.cpp and OpenVINO GenAI: the same GGUF file, the same prompts, taking turns in one run.

    python benchmarks/peers.py step --model smollm2 --peer-python VENV/bin/python
    python benchmarks/peers.py texts --model smollm2 --peer-python VENV/bin/python --prompts a.jsonl b.jsonl

`step` is decoding one token behind a context: outrider's whole engine step against llama.cpp's bare evaluation, without
its sampling. `texts` decodes greedily with each side off and with look-up drafting; tokens a second are counted from
the first token on. Every side is a process of its own, loaded once, that waits while another runs; the peers' may be
another environment (`--peer-python`), with `llama-cpp-python` (built without AMX where its AMX path crashes) and
`openvino-genai`. A peer that cannot be loaded is reported and left out.
"""

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# side -> what it can do: a name and what the worker is told
SIDES = {
    "ours": {"off": {}, "suffix": {"drafter": "suffix"}, "ngram": {"drafter": "ngram"}},
    "llama": {
        "off": {},
        "off, flash": {"flash": True},
        "lookup 2x10": {"lookup": [2, 10]},
        "lookup 3x8": {"lookup": [3, 8]},
    },
    "openvino": {"off": {}, "lookup": {"lookup": [3, 5]}},
}


def main() -> None:
    """Measure and print JSON; with `--worker`, be one side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("step", "texts"))
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=list(SIDES))
    parser.add_argument("--prompts", nargs="+", default=[], type=Path)
    parser.add_argument("--limit", type=int, default=6, help="prompts of each file, evenly spread")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--worker", choices=list(SIDES))
    options = parser.parse_args()
    if options.worker:
        return serve(options.worker, options.model, options.threads)
    if options.what == "texts" and not options.prompts:
        parser.error("texts needs --prompts")
    ours = Worker("ours", options.model, options)
    path = ours.ask(task="path")["path"]
    workers = {"ours": ours}
    report: dict[str, Any] = {"model": options.model, "file": Path(path).name, "left_out": {}}
    for side in options.sides:
        if side == "ours":
            continue
        try:
            workers[side] = Worker(side, path, options)
        except RuntimeError as error:
            report["left_out"][side] = str(error)[-300:]
    try:
        report |= step(workers, options) if options.what == "step" else texts(workers, options)
    finally:
        for worker in workers.values():
            worker.close()
    print(json.dumps(report, indent=1))
    return None


def step(workers: dict[str, "Worker"], options: argparse.Namespace) -> dict[str, Any]:
    """Median milliseconds of a one-token step, by side and mode."""
    prompt = [(7919 * i + 11) % 4096 + 300 for i in range(options.context)]
    times: dict[str, list[float]] = {}
    for turn in range(options.rounds + 1):
        for side, worker in workers.items():
            for mode, settings in SIDES[side].items():
                if "off" not in mode:
                    continue
                told = settings | {"steps": True}
                done = worker.ask(task="run", prompt=prompt, max_tokens=options.tokens, settings=told)
                if turn:
                    times.setdefault(f"{side}: {mode}", []).append(done["seconds"] / done["steps"])
    return {"milliseconds_a_step": {name: round(1e3 * statistics.median(found), 2) for name, found in times.items()}}


def texts(workers: dict[str, "Worker"], options: argparse.Namespace) -> dict[str, Any]:
    """Decode tokens a second over all prompts of a file, by side and mode."""
    report: dict[str, Any] = {}
    for file in options.prompts:
        prompts = workers["ours"].ask(task="prompts", file=str(file), limit=options.limit)["prompts"]
        sums: dict[str, list[float]] = {}
        for prompt in prompts:
            for side, worker in workers.items():
                for mode, settings in SIDES[side].items():
                    done = worker.ask(task="run", prompt=prompt, max_tokens=options.tokens, settings=settings)
                    total = sums.setdefault(f"{side}: {mode}", [0.0, 0.0])
                    total[0] += done["steps"]
                    total[1] += done["seconds"]
        rates = {name: round(tokens / seconds, 1) for name, (tokens, seconds) in sums.items() if seconds}
        best = {side: max(rate for name, rate in rates.items() if name.startswith(side)) for side in workers}
        ratios = {side: round(best["ours"] / rate, 2) for side, rate in best.items() if side != "ours"}
        report[file.name] = {"prompts": len(prompts), "tokens_a_second": rates, "ours_times_their_best": ratios}
    return {"texts": report}


class Worker:
    """One side in a process of its own.

    Raises:
        RuntimeError: it could not load the model.
    """

    def __init__(self, side: str, model: str, options: argparse.Namespace) -> None:
        python = sys.executable if side == "ours" else options.peer_python
        command = [
            python,
            __file__,
            options.what,
            "--worker",
            side,
            "--model",
            model,
            "--threads",
            str(options.threads),
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

    def ask(self, **question: Any) -> dict[str, Any]:
        """A question and its answer."""
        self._process.stdin.write(json.dumps(question) + "\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]
        return self._read()

    def _read(self) -> dict[str, Any]:
        for line in self._process.stdout:  # type: ignore[union-attr]
            if line.startswith("@"):  # libraries print things too
                answer: dict[str, Any] = json.loads(line[1:])
                if "error" in answer:
                    raise RuntimeError(answer["error"])
                return answer
        raise RuntimeError(f"it ended with status {self._process.wait()}")

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait()


def serve(side: str, model: str, threads: int) -> None:
    """Answer questions from standard input, one JSON document a line."""
    try:
        answer = {"ours": ours, "llama": llama, "openvino": openvino}[side](model, threads)
    except Exception as error:  # whatever a peer raises, it is left out
        print("@" + json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        return
    print("@{}", flush=True)
    for line in sys.stdin:
        print("@" + json.dumps(answer(json.loads(line))), flush=True)


Answer = Callable[[dict[str, Any]], dict[str, Any]]


def ours(model: str, threads: int) -> Answer:
    """outrider: the whole engine, its default policy."""
    import torch

    from outrider.core.params import SamplingParams
    from outrider.drafters.registry import build_drafter
    from outrider.engine.engine import Engine
    from outrider.models.loading import load_model
    from outrider.policies.registry import build_policy
    from outrider.workloads import encode_item, read_prompts

    torch.set_num_threads(threads)
    loaded = load_model(model)
    engines: dict[str, Engine] = {}

    def engine(name: str) -> Engine:
        if name not in engines:
            drafters = [build_drafter(name, loaded)] if name else []
            ends = loaded.defaults.stop_token_ids
            engines[name] = Engine(
                loaded.target, drafters, build_policy("heuristic"), tokenizer=loaded.tokenizer, end_ids=ends
            )
        return engines[name]

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        if question["task"] == "path":
            files = [loaded.path] if loaded.path.is_file() else sorted(loaded.path.glob("*.gguf"))
            return {"path": str(files[0])}
        if question["task"] == "prompts":
            items = list(read_prompts(Path(question["file"])))
            chosen = items[:: max(1, len(items) // question["limit"])][: question["limit"]]
            return {"prompts": [encode_item(loaded.tokenizer, item) for item in chosen]}
        settings = question["settings"]
        runner = engine(settings.get("drafter", ""))
        params = SamplingParams(max_tokens=question["max_tokens"] + 1, ignore_eos="steps" in settings)
        (request,) = runner.submit(question["prompt"], params)
        while request.num_output == 0:
            runner.step()
        first, started = request.num_output, time.perf_counter()
        while runner.num_unfinished:
            runner.step()
        return {"steps": request.num_output - first, "seconds": time.perf_counter() - started}

    return answer


def llama(model: str, threads: int) -> Answer:
    """llama.cpp through llama-cpp-python; each mode is a context of its own."""
    library = importlib.import_module("llama_cpp")
    speculative = importlib.import_module("llama_cpp.llama_speculative")
    models: dict[str, Any] = {}

    def model_for(settings: dict[str, Any]) -> Any:
        key = json.dumps({name: value for name, value in settings.items() if name != "steps"})
        if key not in models:
            lookup = settings.get("lookup")
            models[key] = library.Llama(
                model, n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False,
                flash_attn=settings.get("flash", False), logits_all=lookup is not None,
                draft_model=speculative.LlamaPromptLookupDecoding(*lookup) if lookup else None,
            )  # fmt: skip
        return models[key]

    model_for({})

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        runner, count = model_for(question["settings"]), question["max_tokens"]
        runner.reset()
        if "steps" in question["settings"]:
            runner.eval(question["prompt"])
            started = time.perf_counter()
            for number in range(count):
                runner.eval([300 + 7 * number])
            return {"steps": count, "seconds": time.perf_counter() - started}
        produced, started = 0, 0.0
        for token in runner.generate(question["prompt"], temp=0.0, repeat_penalty=1.0):
            if produced == 0:
                started = time.perf_counter()
            produced += 1
            if token == runner.token_eos() or produced > count:
                break
        return {"steps": produced - 1, "seconds": time.perf_counter() - started}

    return answer


def openvino(model: str, threads: int) -> Answer:
    """OpenVINO GenAI reading the GGUF file itself."""
    genai, core = importlib.import_module("openvino_genai"), importlib.import_module("openvino")
    pipelines: dict[bool, Any] = {}

    def pipeline(lookup: bool) -> Any:
        if lookup not in pipelines:
            more = {"prompt_lookup": True} if lookup else {}
            pipelines[lookup] = genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads, **more)
        return pipelines[lookup]

    pipeline(False)

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        settings, count = question["settings"], question["max_tokens"]
        runner = pipeline("lookup" in settings)
        config = runner.get_generation_config()
        config.max_new_tokens, config.do_sample, config.repetition_penalty = count + 1, False, 1.0
        config.ignore_eos = "steps" in settings
        if "lookup" in settings:
            config.max_ngram_size, config.num_assistant_tokens = settings["lookup"]
        import numpy as np

        ids = np.asarray([question["prompt"]], dtype=np.int64)
        inputs = genai.TokenizedInputs(core.Tensor(ids), core.Tensor(np.ones_like(ids)))
        done = runner.generate(inputs, config)
        metrics, produced = done.perf_metrics, len(done.tokens[0])
        seconds = (metrics.get_generate_duration().mean - metrics.get_ttft().mean) / 1e3
        return {"steps": produced - 1, "seconds": seconds}

    return answer


if __name__ == "__main__":
    main()
