"""Designs that look right and are biased: the shipped code with one named step replaced.

They show what a test, a certificate or a reader would see: the exactness suite has to fail on each of them. Nothing
here is ever used to serve. This module knows the steps of `core.steps` and nothing of models or requests. Invariant: a
fault replaces exactly one step, so that whatever it changes is that step's doing.

Source:
    Public reports of speculative decoding that bent the output, and the designs that papers warn of; each fault names
    its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from outrider.core.arrays import to_numpy
from outrider.core.coins import At, Coins, DraftCoins
from outrider.core.growth import Drawn, Place, draw_children
from outrider.core.params import Draw, Rule
from outrider.core.steps import STEPS, Steps, acceptance, removal, residual, sibling_order, typical_threshold
from outrider.core.types import IntArray

__all__ = ["FAULTS", "HONEST", "Fault", "Text"]

Text = tuple[int, ...]


def _one_pass(judge: Callable[[], Text]) -> Text:
    return judge()


def _own_round(number: int) -> int:
    return number


@dataclass(frozen=True, slots=True)
class Fault:
    """One biased design.

    Attributes:
        name: what it does, in words.
        where: the part whose step is replaced.
        known: where it was seen or is warned of.
        steps: the named steps, one of them replaced.
        emit: how a pass comes to its tokens: draft and judge once, in the shipped code.
        round_of: number of a request's pass -> the round that keys its coins.
    """

    name: str
    where: Literal["nothing", "verify", "drafter", "trim", "pass", "coins"]
    known: str
    steps: Steps = STEPS
    emit: Callable[[Callable[[], Text]], Text] = _one_pass
    round_of: Callable[[int], int] = _own_round


HONEST = Fault("the shipped code", "nothing", "nowhere")


# -- the rules ---------------------------------------------------------------------------------------------------------


def _forgets_division(target: Any, draft: Any, tokens: Any) -> Any:  # noqa: ARG001 - the step's arguments
    return to_numpy(target)[np.arange(len(tokens)), to_numpy(tokens)]


def _soft_ratio(target: Any, draft: Any, tokens: Any) -> Any:  # noqa: ARG001 - the step's arguments
    return 2.0 * to_numpy(target)[np.arange(len(tokens)), to_numpy(tokens)]


def _lenient(target: Any, draft: Any, tokens: Any) -> Any:
    return 2.0 * acceptance(target, draft, tokens)


def _everything(target: Any, draft: Any, tokens: Any) -> Any:  # noqa: ARG001 - the step's arguments
    return np.ones(len(tokens))


def _greedy(target: Any, draft: Any, tokens: Any) -> Any:  # noqa: ARG001 - the step's arguments
    return (to_numpy(target).argmax(axis=1) == to_numpy(tokens)).astype(np.float64)


def _typical(target: Any, draft: Any, tokens: Any) -> Any:  # noqa: ARG001 - the step's arguments
    likely = to_numpy(target)[np.arange(len(tokens)), to_numpy(tokens)] > to_numpy(typical_threshold(target))
    return likely.astype(np.float64)


def _keeps_target(target: Any, draft: Any) -> Any:  # noqa: ARG001 - the step's arguments
    return target


def _keeps_refused_token(target: Any, draft: Any) -> Any:
    mixed = abs(target - draft)
    return mixed / mixed.sum(-1, keepdims=True)


def _removes_always(draft: Any, tokens: Any, without_replacement: Any) -> Any:
    return removal(draft, tokens, without_replacement | True)


def _removes_never(draft: Any, tokens: Any, without_replacement: Any) -> Any:  # noqa: ARG001 - the step's arguments
    return draft


def _reversed_siblings(draws: Sequence[Draw]) -> list[tuple[int, Draw]]:
    return sibling_order(draws)[::-1]


def _every_companion_a_sample(draws: Sequence[Draw]) -> list[tuple[int, Draw]]:
    return list(enumerate(draws))


def _first_child(tokens: Sequence[int], sampled: int) -> int | None:  # noqa: ARG001 - the step's arguments
    return 0 if tokens else None


def _sample_per_path(coins: Coins, law: Any, at: At, below: Sequence[Sequence[int]]) -> IntArray:
    """One sample for each path that begins here; whichever is its own path's next node is followed."""
    tokens = coins.sample(law, at)
    for row, nodes in enumerate(below):
        for node in nodes:
            here = At(at.request[row : row + 1], np.asarray([node]), at.position[row : row + 1])
            own = coins.draw(law[row : row + 1], here)
            tokens[row] = max(tokens[row], own[0])
    return tokens


def _uncapped(previous: Any, ratio: Any) -> Any:
    return previous * ratio


def _chance_of_the_weight(weight: Any, target: Any, draft: Any) -> Any:  # noqa: ARG001 - the step's arguments
    return weight


def _token_residual(weight: Any, target: Any, draft: Any) -> Any:  # noqa: ARG001 - the step's arguments
    return residual(target, draft)


def _stops_at_first_failure(accept: Callable[[IntArray, int], Any], counts: IntArray) -> IntArray:
    kept, going = np.zeros(len(counts), dtype=np.int64), np.full(len(counts), True)
    for length in range(1, int(counts.max(initial=0)) + 1):
        asked = np.flatnonzero(going & (counts >= length))
        if len(asked):
            going[asked] = accept(asked, length)
            kept[going & (counts >= length)] = length
    return kept


# -- drafters ----------------------------------------------------------------------------------------------------------


def _sharpened(coins: DraftCoins, law: Any, place: Place, count: int, draw: Draw) -> Drawn:
    """Draws from a sharpened law and reports the other."""
    sharp = law * law
    drawn = draw_children(coins, sharp / sharp.sum(), place, count, draw)
    return drawn if drawn.law is None else drawn._replace(law=law)


def _sorted_children(coins: DraftCoins, law: Any, place: Place, count: int, draw: Draw) -> Drawn:
    drawn = draw_children(coins, law, place, count, draw)
    if draw is not Draw.WITHOUT_REPLACEMENT:
        return drawn
    return drawn._replace(tokens=sorted(drawn.tokens, key=lambda token: -float(law[token])))


def _drops_unlikely(values: Sequence[float], draws: Sequence[int], budget: int) -> list[int]:  # noqa: ARG001
    """Drops each token whose path came out less probable than a third."""
    return [node for node, value in enumerate(values) if value >= 1 / 3]


def _keeps_the_best(values: Sequence[float], draws: Sequence[int], budget: int) -> list[int]:  # noqa: ARG001
    """Ranks the nodes of a sampled tree by path probability and keeps the better half."""
    best = sorted(range(len(values)), key=lambda node: (-values[node], node))
    return sorted(best[: max(1, len(values) // 2)])


def _in_retrospect(values: Sequence[float], draws: Sequence[int], budget: int) -> list[int]:  # noqa: ARG001
    """Cuts a draft where, now that all of it is known, tokens over rows were best."""
    gains = [(1 + sum(values[:length])) / (1 + 0.5 * length) for length in range(len(values) + 1)]
    return list(range(int(np.argmax(gains))))


# -- around them -------------------------------------------------------------------------------------------------------


def _cuts_anything(rule: Rule, draws: IntArray) -> Any:  # noqa: ARG001 - the step's arguments
    return np.full(len(draws), True)


def _longest_of_two(judge: Callable[[], Text]) -> Text:
    return max(judge(), judge(), key=len)


def _always_the_first(number: int) -> int:  # noqa: ARG001 - the step's argument
    return 0


FAULTS: tuple[Fault, ...] = (
    Fault(
        "ratio without its denominator", "verify", "jaymody/speculative-sampling#3", Steps(acceptance=_forgets_division)
    ),
    Fault(
        "greedy draft judged by a soft probability",
        "verify",
        "huggingface/transformers#32867",
        Steps(acceptance=_soft_ratio),
    ),
    Fault("lenience of one half", "verify", "arXiv 2211.17192, appendix A.5", Steps(acceptance=_lenient)),
    Fault("everything accepted", "verify", "huggingface/transformers PR 28508", Steps(acceptance=_everything)),
    Fault("accepted where it is the argmax", "verify", "lablup/mlxcel#902", Steps(acceptance=_greedy)),
    Fault("accepted where it is typical", "verify", "arXiv 2401.10774", Steps(acceptance=_typical)),
    Fault("correction drawn from p", "verify", "openvinotoolkit/openvino.genai#4190", Steps(residual=_keeps_target)),
    Fault("correction may be the refused token", "verify", "arXiv 2211.17192", Steps(residual=_keeps_refused_token)),
    Fault(
        "i.i.d. siblings judged as drawn without replacement", "verify", "2402.12374", Steps(removal=_removes_always)
    ),
    Fault("siblings without replacement judged as i.i.d.", "verify", "2305.09781", Steps(removal=_removes_never)),
    Fault("siblings tried in another order", "verify", "arXiv 2402.12374", Steps(sibling_order=_reversed_siblings)),
    Fault(
        "certain companions judged as samples",
        "verify",
        "apple/ml-recurrent-drafter#6",
        Steps(sibling_order=_every_companion_a_sample),
    ),
    Fault("the draft is trusted", "verify", "huggingface/transformers PR 28508", Steps(match_child=_first_child)),
    Fault("the target is sampled for each path", "verify", "arXiv 2401.10774, code", Steps(sample=_sample_per_path)),
    Fault("path weights not capped", "verify", "arXiv 2601.05724, code", Steps(weight=_uncapped)),
    Fault("chance of a path is its weight", "verify", "arXiv 2403.10444", Steps(block_chance=_chance_of_the_weight)),
    Fault(
        "block rule stops at the first failure",
        "verify",
        "vllm-ascend#11985",
        Steps(block_length=_stops_at_first_failure),
    ),
    Fault(
        "block rule draws the token rule's correction",
        "verify",
        "vllm-ascend#7808",
        Steps(block_residual=_token_residual),
    ),
    Fault(
        "law reported is not the law drawn from",
        "drafter",
        "huggingface/transformers#47932",
        Steps(draw_children=_sharpened),
    ),
    Fault(
        "children sorted before they are judged", "drafter", "arXiv 2402.12374", Steps(draw_children=_sorted_children)
    ),
    Fault("unlikely tokens dropped after the draw", "drafter", "arXiv 2302.01318", Steps(survivors=_drops_unlikely)),
    Fault("a sampled tree is ranked and cut", "drafter", "arXiv 2406.16858, sampled", Steps(survivors=_keeps_the_best)),
    Fault("length chosen in retrospect", "drafter", "arXiv 2607.05147, appendix A", Steps(survivors=_in_retrospect)),
    Fault("a policy may cut sampled nodes", "trim", "arXiv 2607.05147, appendix A", Steps(cuttable=_cuts_anything)),
    Fault("longest of two judged drafts", "pass", "arXiv 2602.16961", emit=_longest_of_two),
    Fault("coins reused in the next round", "coins", "vllm-ascend#16370", round_of=_always_the_first),
)
"""Every biased design; the exactness suite fails on each."""
