"""Open-loop load on a server that speaks the OpenAI protocol: requests come when they come, however busy it is.

    python benchmarks/load.py --endpoint http://127.0.0.1:8000 --rate 0.5,1,2 --num 40 --prompts mine.txt
    python benchmarks/load.py --endpoint http://127.0.0.1:8000 --trace AzureLLMInferenceTrace_conv.csv --speed 20

Arrivals are Poisson with a seed, or the times and lengths of an Azure trace (TIMESTAMP, ContextTokens,
GeneratedTokens; https://github.com/Azure/AzurePublicDataset). Reports time to first token (from the moment at which
the request should have been sent), time per output token, time between chunks, tokens/s, and goodput: the share of
requests within both limits of the SLO, and how many a second they are. In each round each load is run with each of
--body, so that on and off meet the same arrivals, by turns: every other round in the other order. To compare them,
serve with `--prefix-tokens 0`, or who comes second finds its prompts cached.
"""

import argparse
import asyncio
import csv
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

TEXT = "the river runs past old houses and small gardens where people talk about rain work bread music and news"
WORDS = TEXT.split()


@dataclass(frozen=True)
class Arrival:
    """A request to come: when, with which prompt, how long its answer may be."""

    seconds: float
    prompt: str
    max_tokens: int


@dataclass
class Answer:
    """What became of it."""

    status: str
    first_seconds: float = 0.0
    token_seconds: float = 0.0
    num_tokens: int = 0
    late_seconds: float = 0.0
    gaps: list[float] = field(default_factory=list)


def poisson(rate: float, count: int, prompts: Sequence[str], max_tokens: int, seed: int) -> list[Arrival]:
    """Independent arrivals at a mean rate a second."""
    draw = random.Random(seed)
    now, arrivals = 0.0, []
    for number in range(count):
        now += draw.expovariate(rate)
        arrivals.append(Arrival(now, prompts[number % len(prompts)], max_tokens))
    return arrivals


def azure(path: Path, count: int, speed: float, longest: int, max_tokens: int) -> list[Arrival]:
    """Arrivals of a trace, played `speed` times as fast; prompts are words of the traced length, cut at `longest`."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = [row for row, _ in zip(csv.DictReader(file), range(count), strict=False)]
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in rows]
    arrivals = []
    for number, (row, when) in enumerate(zip(rows, times, strict=True)):
        draw = random.Random(number)
        size = min(int(row["ContextTokens"]), longest)
        prompt = " ".join(draw.choice(WORDS) for _ in range(max(1, size)))
        arrivals.append(
            Arrival((when - times[0]) / speed, prompt, max(1, min(int(row["GeneratedTokens"]), max_tokens)))
        )
    return arrivals


async def ask(client: httpx.AsyncClient, model: str, arrival: Arrival, body: dict[str, Any], start: float) -> Answer:
    """Send one request at its time and read its stream."""
    await asyncio.sleep(max(0.0, start + arrival.seconds - time.perf_counter()))
    due = start + arrival.seconds
    answer = Answer("broken", late_seconds=time.perf_counter() - due)
    asked = {
        "model": model,
        "messages": [{"role": "user", "content": arrival.prompt}],
        "max_tokens": arrival.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        **body,
    }
    try:
        async with client.stream("POST", "/v1/chat/completions", json=asked) as stream:
            if stream.status_code != 200:
                await stream.aread()
                return Answer(str(stream.status_code), late_seconds=answer.late_seconds)
            await _read(stream, answer, due)
    except httpx.HTTPError as error:
        answer.status = type(error).__name__
    return answer


async def _read(stream: httpx.Response, answer: Answer, due: float) -> None:
    first = last = 0.0
    num_first = 0
    async for line in stream.aiter_lines():
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            answer.status = "ok"
            break
        chunk = json.loads(line[6:])
        now = time.perf_counter()
        answer.num_tokens = (chunk.get("usage") or {}).get("completion_tokens", answer.num_tokens)
        if any(choice["delta"].get("content") for choice in chunk.get("choices", ())):
            if first:
                answer.gaps.append(now - last)
            else:
                first, num_first = now, answer.num_tokens
            last = now
    answer.first_seconds = first - due
    answer.token_seconds = (last - first) / (answer.num_tokens - num_first) if answer.num_tokens > num_first else 0.0


async def run(
    options: argparse.Namespace, arrivals: Sequence[Arrival], body: dict[str, Any]
) -> tuple[list[Answer], float]:
    """One load; gives the answers and the seconds until the last of them."""
    limits = httpx.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {options.key}"}
    async with httpx.AsyncClient(base_url=options.endpoint, timeout=600, limits=limits, headers=headers) as client:
        model = options.model or (await client.get("/v1/models")).json()["data"][0]["id"]
        start = time.perf_counter() + 0.1
        answers = await asyncio.gather(*(ask(client, model, arrival, body, start) for arrival in arrivals))
        return answers, time.perf_counter() - start


def by_turns(
    options: argparse.Namespace, rounds: Sequence[Sequence[Arrival]], bodies: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Each round with each body, every other round in the other order; figures of all rounds for each body.

    A run's prompts begin with its own number, so that none finds what another left in the server's cache.
    """
    found: list[list[tuple[list[Answer], float]]] = [[] for _ in bodies]
    for number, arrivals in enumerate(rounds):
        order = range(len(bodies)) if number % 2 == 0 else reversed(range(len(bodies)))
        for place in order:
            name = f"Run {time.time_ns()}."
            own = [replace(arrival, prompt=f"{name} {arrival.prompt}") for arrival in arrivals]
            found[place].append(asyncio.run(run(options, own, bodies[place])))
    return [
        figures(
            [answer for answers, _ in runs for answer in answers],
            sum(seconds for _, seconds in runs),
            options.slo_first,
            options.slo_token,
        )
        for runs in found
    ]


def figures(answers: Sequence[Answer], elapsed: float, slo_first: float, slo_token: float) -> dict[str, Any]:
    """Sums of one load."""
    done = [answer for answer in answers if answer.status == "ok"]
    good = [a for a in done if a.first_seconds <= slo_first and a.token_seconds <= slo_token]
    statuses = {status: sum(a.status == status for a in answers) for status in {a.status for a in answers}}
    return {
        "requests": len(answers),
        "statuses": statuses,
        "seconds": round(elapsed, 2),
        "tokens_per_second": round(sum(a.num_tokens for a in done) / elapsed, 2),
        "first_token_seconds": _spread([a.first_seconds for a in done]),
        "seconds_per_token": _spread([a.token_seconds for a in done if a.token_seconds]),
        "seconds_between_chunks": _spread([gap for a in done for gap in a.gaps]),
        "goodput_share": round(len(good) / len(answers), 3),
        "goodput_per_second": round(len(good) / elapsed, 3),
        "client_late_seconds": round(max((a.late_seconds for a in answers), default=0.0), 3),
    }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    return {
        "median": round(statistics.median(ordered), 4),
        "p90": round(ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))], 4),
        "p99": round(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 4),
    }


async def leave(options: argparse.Namespace) -> dict[str, Any]:
    """Hang up after the first text of a long answer, again and again: seconds until the server's slots are free."""
    seconds = []
    headers = {"Authorization": f"Bearer {options.key}"}
    async with httpx.AsyncClient(base_url=options.endpoint, timeout=600, headers=headers) as client:
        model = options.model or (await client.get("/v1/models")).json()["data"][0]["id"]
        for number in range(options.disconnects):
            messages = [{"role": "user", "content": f"{TEXT} {number}"}]
            body = {"model": model, "messages": messages, "stream": True, "max_tokens": 2000, "ignore_eos": True}
            async with client.stream("POST", "/v1/chat/completions", json=body) as stream:
                async for line in stream.aiter_lines():
                    if '"content":"' in line and '"content":""' not in line:
                        break
                started = time.perf_counter()
            while any(
                line.startswith("outrider:num_requests_running{") and not line.endswith(" 0.0")
                for line in (await client.get("/metrics")).text.splitlines()
            ):
                pass
            seconds.append(time.perf_counter() - started)
    return {"disconnects": options.disconnects, "seconds_until_free": _spread(seconds)}


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoint", default="http://127.0.0.1:8000")
    parser.add_argument("--model")
    parser.add_argument("--key", default="none")
    parser.add_argument("--rate", default="1", help="Poisson arrivals a second; several, separated by commas")
    parser.add_argument("--trace", type=Path, help="an Azure trace instead of Poisson arrivals")
    parser.add_argument("--speed", type=float, default=1.0, help="how many times as fast a trace is played")
    parser.add_argument("--longest", type=int, default=1024, help="words of a traced prompt at most")
    parser.add_argument("--num", type=int, default=40, help="requests of a load in one round")
    parser.add_argument("--rounds", type=int, default=2, help="rounds, each with every body, by turns")
    parser.add_argument("--prompts", type=Path, help="a text file, one prompt a line")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slo-first", type=float, default=2.0, help="seconds to the first token")
    parser.add_argument("--slo-token", type=float, default=0.1, help="seconds a token after it")
    parser.add_argument("--disconnects", type=int, default=0, help="measure so many hang-ups too (outrider's metrics)")
    parser.add_argument("--body", action="append", help="fields of each request, as JSON; several are run by turns")
    return parser.parse_args()


def main() -> None:
    """Run each load with each body; print a line of JSON for each."""
    options = parse()
    prompts = [" ".join(WORDS)]
    if options.prompts:
        prompts = [line for line in options.prompts.read_text(encoding="utf-8").splitlines() if line.strip()]
    bodies = [json.loads(body) for body in options.body or ["{}", '{"speculation": "off"}']]
    if options.trace:
        arrivals = azure(options.trace, options.num, options.speed, options.longest, options.max_tokens)
        loads = {f"trace x{options.speed:g}": [arrivals] * options.rounds}
    else:
        seeds = range(options.seed, options.seed + options.rounds)
        loads = {
            f"{rate:g}/s": [poisson(rate, options.num, prompts, options.max_tokens, seed) for seed in seeds]
            for rate in map(float, options.rate.split(","))
        }
    by_turns(options, [[Arrival(0.0, prompts[0], 8)]], bodies)  # not counted
    for name, rounds in loads.items():
        for body, result in zip(bodies, by_turns(options, rounds, bodies), strict=True):
            print(json.dumps({"load": name, "rounds": options.rounds, "body": body, **result}), flush=True)
    if options.disconnects:
        print(json.dumps(asyncio.run(leave(options))))


if __name__ == "__main__":
    main()
