"""Many short texts of the real engine against the exact law of their first tokens.

The law is a tree of cells: a text of the first tokens that is likely enough to be counted, or all that is rarer behind
the same beginning. Sampling sees what is large enough only, so each answer says how large (`smallest_difference`).
This module knows engines and laws; it does not know what a certificate claims. Invariant: the cells are chosen from the
law and the number of samples alone, never from what was sampled, and their probabilities add up to 1.

Source:
    Pearson's chi-square test of a known law; its power by the non-central chi-square law (chi-square distance is at
    least 4 times the square of total variation).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from outrider.bench.paths import chain_logits
from outrider.core.arrays import to_numpy
from outrider.core.params import SamplingParams, Speculation
from outrider.core.process import History, Processor
from outrider.engine.engine import Engine
from outrider.errors import GenerationError

__all__ = ["chi_square", "exact_cells", "sample_texts", "smallest_difference", "tail"]

Cell = tuple[int, ...]
"""Tokens of a text; -1 at its end stands for every token that has no cell of its own."""

_LEAST, _OPEN = 5.0, 50.0
_REST = -1


def exact_cells(engine: Engine, prompt: Sequence[int], params: SamplingParams, count: int) -> dict[Cell, float]:
    """Probabilities of cells under plain decoding.

    Args:
        engine: its target, its end-of-text tokens.
        prompt: token ids.
        params: with `max_tokens`, the number of first tokens.
        count: samples that will be drawn: a token has a cell of its own if 5 of them are expected in it, and a text is
            followed further if 50 are.
    """
    processor = Processor(params, engine.target.vocab_size, engine.end_ids)
    ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else engine.end_ids)
    target, last = engine.target, len(prompt) - 1
    cache = target.make_cache()
    slot = cache.acquire()
    cache.reserve(slot, len(prompt) + (params.max_tokens or 1))
    if last:
        chain_logits(target, cache, slot, prompt[:last], 0, [])
        cache.keep(slot, last, ())
    cells: dict[Cell, float] = {}
    frontier: list[tuple[Cell, float]] = [((), 1.0)]
    while frontier:
        text, weight = frontier.pop()
        history = History(prompt)
        history.extend(text)
        row = chain_logits(target, cache, slot, [prompt[last], *text], last, [len(text)])[0]
        cache.truncate(slot, last)
        law = weight * to_numpy(processor.law(row[None, :], [processor.start(history)]))[0].astype(np.float64)
        (own,) = np.nonzero(law * count >= _LEAST)
        for token in own.tolist():
            longer = (*text, token)
            goes_on = law[token] * count >= _OPEN and len(longer) < (params.max_tokens or 1) and token not in ends
            if goes_on:
                frontier.append((longer, float(law[token])))
            else:
                cells[longer] = float(law[token])
        rest = float(law.sum() - law[own].sum())
        if rest > 0:
            cells[(*text, _REST)] = rest
    return cells


def sample_texts(
    engine: Engine, prompt: Sequence[int], params: SamplingParams, speculation: Speculation, count: int, length: int
) -> Counter[Cell]:
    """First tokens of texts of the engine, each with noise of its own, and how often they came.

    Args:
        engine: the engine with drafters.
        prompt: token ids.
        params: how tokens are drawn; texts may be longer than what is looked at, so that drafts are not cut short.
        speculation: how the texts are speculated on.
        count: number of texts.
        length: tokens of each that are looked at; then it is ended.

    Raises:
        GenerationError: a request failed.
    """
    requests = {r.request_id: r for r in engine.submit(prompt, replace(params, n=count), speculation)}
    while engine.num_unfinished:
        for event in engine.step():
            if event.error is not None:
                raise GenerationError(event.error, ())
            request = requests[event.request_id]
            if event.finish_reason is None and request.num_output >= length:
                engine.abort(request)
    return Counter(tuple(request.output[:length]) for request in requests.values())


def chi_square(cells: dict[Cell, float], seen: Counter[Cell]) -> dict[str, Any]:
    """Pearson's statistic over pooled cells.

    Returns:
        statistic, degrees of freedom, p_value, number of cells, and the total variation between law and counts.
    """
    counts: Counter[Cell] = Counter()
    followed = {cell[:length] for cell in cells for length in range(len(cell))}
    for text, times in seen.items():
        counts[_cell_of(text, cells, followed)] += times
    total = seen.total()
    small = [cell for cell, weight in cells.items() if weight * total < _LEAST]
    pairs = [(weight * total, counts[cell]) for cell, weight in cells.items() if cell not in set(small)]
    if small:
        pairs.append((sum(cells[cell] for cell in small) * total, sum(counts[cell] for cell in small)))
    if pairs[-1][0] < _LEAST and len(pairs) > 1:  # what is left together is still too rare for a cell
        (expected, observed), (more, others) = pairs.pop(), pairs.pop(0)
        pairs.append((expected + more, observed + others))
    impossible = total - sum(observed for _, observed in pairs)
    statistic = sum((observed - expected) ** 2 / expected for expected, observed in pairs)
    degrees = len(pairs) - 1
    return {
        "samples": total,
        "cells": len(pairs),
        "degrees": degrees,
        "statistic": statistic,
        "impossible": impossible,
        "p_value": 0.0 if impossible else tail(statistic, degrees),
        "total_variation": sum(abs(observed - expected) for expected, observed in pairs) / 2 / total,
    }


def _cell_of(text: Cell, cells: dict[Cell, float], followed: set[Cell]) -> Cell:
    """The cell that a text falls into; one that is not in `cells` has probability 0."""
    for length in range(1, len(text) + 1):
        if text[:length] in cells:
            return text[:length]
        if text[:length] not in followed:
            return (*text[: length - 1], _REST)
    return text


def tail(statistic: float, degrees: int) -> float:
    """Probability that chi-square with so many degrees of freedom is at least as large; 1 where there are none."""
    import torch

    if degrees < 1:
        return 1.0
    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def smallest_difference(count: int, degrees: int, size: float, power: float) -> float:
    """The total variation between the cells' laws from which on the test fails with probability `power`.

    Args:
        count: samples.
        degrees: degrees of freedom.
        size: probability of failing for the exact law.
        power: wanted probability of failing for another one.
    """
    if degrees < 1:
        return 1.0
    limit = _bisect(lambda x: tail(x, degrees) < size, 10.0 * degrees + 200.0)
    need = _bisect(lambda noncentral: _power(limit, degrees, noncentral) > power, 100.0 * degrees + 1000.0)
    return min(1.0, 0.5 * math.sqrt(need / count))


def _power(limit: float, degrees: int, noncentral: float) -> float:
    """Tail of the non-central law: a Poisson mixture of central ones."""
    import torch

    half = noncentral / 2
    last = int(half + 10 * math.sqrt(half + 1) + 20)
    steps = torch.arange(last, dtype=torch.float64)
    weights = torch.exp(steps * math.log(half) - half - torch.lgamma(steps + 1)) if half > 0 else (steps == 0).double()
    tails = torch.special.gammaincc(degrees / 2 + steps, torch.full_like(steps, limit / 2))
    return float((weights * tails).sum())


def _bisect(is_above: Any, high: float) -> float:
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if is_above(middle) else (middle, high)
    return high
