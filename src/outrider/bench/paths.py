"""The same prompts and seeds with speculation on and off: equal texts, where they part, and how far logits move.

Texts with speculation are made several at a time, those without alone, so that batch mates are tried too. This module
knows engines and targets; it does not know what a certificate claims. Invariant: what is compared has one seed, one
prompt and one target.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from outrider.bench.runs import first_difference
from outrider.cache.base import Cache
from outrider.core.arrays import to_numpy
from outrider.core.coins import Purpose, choice_seed, exponentials, stream_states, uniforms_of
from outrider.core.params import SamplingParams, Speculation
from outrider.core.process import History, Processor
from outrider.core.tree import depths
from outrider.core.types import IntArray
from outrider.drafters.scripted import wrong_half_trees
from outrider.engine.engine import Engine
from outrider.engine.generate import collect
from outrider.models.base import ForwardInputs, Segment, Target

__all__ = ["chain_logits", "compare_paths", "logit_differences", "plain_logits", "seeded"]

_WIDTHS = (2, 4, 8, 16, 32)
_TREE = 31


def compare_paths(
    on: Engine,
    off: Engine,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    speculation: Speculation,
) -> list[dict[str, Any]]:
    """Texts of some prompts with speculation, all at once, and without, alone.

    Args:
        on: the engine with drafters.
        off: an engine without, around the same target.
        prompts: token ids.
        params: one for each prompt, with its seed.
        speculation: how the texts are speculated on.

    Returns:
        What was seen of each prompt; "before_draft" is the text up to the first draft token that was accepted, None
        where none was.
    """
    requests = [on.submit(*asked, speculation)[0] for asked in zip(prompts, params, strict=True)]
    served = collect(on, requests)
    found = []
    for prompt, asked, got in zip(prompts, params, served, strict=True):
        (plain,) = collect(off, off.submit(prompt, asked, Speculation(off=True)))
        place = first_difference(tuple(plain.tokens), tuple(got.tokens))
        accepted = next((number for number, who in enumerate(got.provenance) if who.accepted), None)
        found.append(
            {
                "seed": asked.seed,
                "num_tokens": len(plain.tokens),
                "tokens": plain.tokens,
                "passes": got.stats.steps,
                "drafted": got.stats.drafted,
                "accepted": got.stats.accepted,
                "before_draft": None if accepted is None else got.tokens[:accepted],
                "divergence": None if place is None else _margins(off, prompt, plain.tokens, place, asked),
            }
        )
    return found


def _margins(off: Engine, prompt: Sequence[int], plain: Sequence[int], place: int, params: SamplingParams) -> Any:
    """Place of a divergence, how far the two best tokens are apart there, and how clearly the draw was decided.

    `decided` is the margin in units of logits over temperature: of the two best adjusted logits where decoding is
    greedy, else of the two first arrivals of the draw.
    """
    tokens = [*prompt, *plain[:place]]
    row = plain_logits(off.target, tokens)
    best = np.sort(row)[-2:]
    processor = Processor(params, off.target.vocab_size, off.end_ids)
    history = History(prompt)
    history.extend(plain[:place])
    chain = processor.uncut() if params.is_greedy else processor
    law = to_numpy(chain.law(row[None, :], [processor.start(history)]))[0].astype(np.float64)
    (ids,) = np.nonzero(law > 0)
    if params.is_greedy:
        scores = np.log(law[ids])
    else:
        state = stream_states(choice_seed(params.seed or 0, 0), Purpose.MATCH, len(tokens))
        scores = -np.log(exponentials(uniforms_of(state, ids)) / law[ids])
    first = np.sort(scores)[-2:]
    decided = float(first[1] - first[0]) if len(first) > 1 else float("inf")
    return {"place": place, "margin": float(best[1] - best[0]), "decided": decided}


def plain_logits(target: Target, tokens: Sequence[int]) -> Any:
    """[V] float32 logits after a text, on the host."""
    cache = target.make_cache()
    slot = cache.acquire()
    cache.reserve(slot, len(tokens))
    return chain_logits(target, cache, slot, tokens, 0, [len(tokens) - 1])[0]


def logit_differences(target: Target, tokens: Sequence[int], start: int, seed: int) -> dict[str, float]:
    """Largest difference of logits between passes that verify and passes of one row, the text given.

    Args:
        target: the model.
        tokens: a whole text.
        start: the rows behind this many tokens are compared.
        seed: of the trees' shapes.

    Returns:
        Kind of pass -> largest difference over all rows that carry the text.
    """
    cache = target.make_cache()
    slot = cache.acquire()
    cache.reserve(slot, len(tokens) + _TREE + 1)
    if start:
        chain_logits(target, cache, slot, tokens[:start], 0, [])
        cache.keep(slot, start, ())
    plain = []
    for place in range(start, len(tokens)):
        plain.append(chain_logits(target, cache, slot, tokens[place : place + 1], place, [0])[0])
        cache.keep(slot, place + 1, ())
    found: dict[str, float] = {}
    for width in _WIDTHS:
        worst = 0.0
        for place in range(start, len(tokens) - width + 1, width):
            cache.truncate(slot, place)
            rows = chain_logits(target, cache, slot, tokens[place : place + width], place, range(width))
            cache.keep(slot, place + width, ())
            worst = max(worst, float(np.abs(rows - np.stack(plain[place - start :][:width])).max()))
        if start + width <= len(tokens):
            found[f"chain of {width} rows"] = worst
    found[f"trees of up to {_TREE + 1} rows"] = _tree_difference(target, cache, slot, tokens, start, plain, seed)
    return found


def _tree_difference(
    target: Target, cache: Cache, slot: int, tokens: Sequence[int], start: int, plain: Sequence[Any], seed: int
) -> float:
    """The same for trees of random shapes with the text on one of their paths."""
    script = wrong_half_trees({"text": tokens}, target.vocab_size, seed)
    worst = 0.0
    cache.truncate(slot, start)
    for place in range(start, len(tokens) - 1):
        tree = script("text", tokens[: place + 1], _TREE)
        levels = depths(tree.parents)
        positions = np.concatenate([[place], place + levels])
        row_tokens = [tokens[place], *tree.tokens.tolist()]
        inputs = ForwardInputs(
            np.asarray(row_tokens, dtype=np.int64),
            positions,
            [Segment(slot, 0, len(row_tokens), place, tree.parents)],
            np.arange(len(row_tokens)),
        )
        cache.reserve(slot, place + len(row_tokens))
        rows = to_numpy(target.forward(inputs, cache).logits)
        for row in [0, *(1 + node for node in _on_path(tree, tokens, place))]:
            reference = plain[int(positions[row]) - start]
            worst = max(worst, float(np.abs(rows[row] - reference).max()))
        cache.keep(slot, place + 1, ())
    return worst


def _on_path(tree: Any, tokens: Sequence[int], place: int) -> list[int]:
    """Nodes that carry the text's own tokens from the root down."""
    right: set[int] = {-1}
    levels: IntArray = depths(tree.parents)
    for node, parent in enumerate(tree.parents.tolist()):
        if parent in right and int(tree.tokens[node]) == tokens[place + int(levels[node])]:
            right.add(node)
    return sorted(right - {-1})


def chain_logits(
    target: Target, cache: Cache, slot: int, tokens: Sequence[int], start: int, wanted: Sequence[int]
) -> Any:
    """[len(wanted), V] logits of rows of a chain behind `start` cached tokens."""
    inputs = ForwardInputs(
        np.asarray(tokens, dtype=np.int64),
        np.arange(start, start + len(tokens)),
        [Segment(slot, 0, len(tokens), start)],
        np.asarray(wanted, dtype=np.int64),
    )
    return to_numpy(target.forward(inputs, cache).logits)


def seeded(params: SamplingParams, number: int) -> SamplingParams:
    """The settings of prompt number `number`: its own seed."""
    return replace(params, seed=(params.seed or 0) + number)
