"""Closed forms: what speculation gives when the laws, or one acceptance rate, are known.

Notation, the only place where single letters stand for these: p target's law, q draft's law, alpha probability that a
draft token is accepted given that the ones before it were, gamma draft tokens a pass, c cost of one draft token in
target passes, tau expected emitted tokens a pass. NumPy only. This module does not know models, rules or measurements.
Invariant: every formula holds at its ends (alpha 0 and 1, gamma 0).
"""

import numpy as np
from numpy.typing import NDArray

from outrider.core.steps import residual

__all__ = [
    "Law",
    "acceptance",
    "accepted_length_law",
    "block_survival",
    "block_tokens",
    "coupled_acceptance",
    "emitted_law",
    "expected_tokens",
    "greedy_draft_acceptance",
    "leftover",
    "optimal_acceptance",
    "speedup",
]

Law = NDArray[np.float64]


def acceptance(p: Law, q: Law) -> float:
    """The largest acceptance that any exact rule has for one draft token of q: sum_x min(p, q) = 1 - TV(p, q).

    Args:
        p: [V] target's law.
        q: [V] draft's law.

    Source:
        Leviathan et al., 2022, arXiv 2211.17192, corollary 3.6.
    """
    return float(np.minimum(p, q).sum())


def coupled_acceptance(p: Law, q: Law) -> float:
    """The acceptance of MATCH when draft and target race with the same noise: sum_x 1 / sum_y max(p_y/p_x, q_y/q_x).

    Args:
        p: [V] target's law.
        q: [V] draft's law.

    Note:
        x wins both races when e(x) <= e(y) / max(p_y/p_x, q_y/q_x) for every y, a race with these rates, that of x
        being 1. At least (1 - TV) / (1 + TV).

    Source:
        Daliri et al., 2024, arXiv 2408.07978.
    """
    both = (p > 0) & (q > 0)
    order = np.argsort(q[both] / p[both], kind="stable")  # [x] the target likes the first ones more than the draft does
    p_x, q_x = p[both][order], q[both][order]
    above = (p.sum() - p_x.sum()) + np.concatenate([[0.0], np.cumsum(p_x)[:-1]])  # p_y/p_x is the larger
    below = (q.sum() - q_x.sum()) + np.cumsum(q_x[::-1])[::-1]  # q_y/q_x is
    return float((1.0 / (above / p_x + below / q_x)).sum())


def block_survival(p: Law, q: Law, gamma: int) -> Law:
    """[gamma] probability that at least 1, 2, ... gamma tokens are accepted by the rule BLOCK.

    Args:
        p: [V] target's law, the same at each position.
        q: [V] draft's law, from which all tokens of the chain are drawn.
        gamma: draft tokens a pass.

    Note:
        At least i tokens are accepted with probability E[w_i], w_i = min(1, w_(i-1) p(x_i) / q(x_i)).

    Source:
        Sun et al., ICLR 2025, arXiv 2403.10444, theorem 2.
    """
    drawn = q > 0
    weights: Law = np.ones(1)
    chances: Law = np.ones(1)
    survival: list[float] = []
    for _ in range(gamma):
        weights = np.minimum(1.0, weights[:, None] * (p[drawn] / q[drawn])).ravel()
        chances = (chances[:, None] * q[drawn]).ravel()
        weights, places = np.unique(weights, return_inverse=True)  # equal weights are one, so that few are left
        chances = np.asarray(np.bincount(places, chances), dtype=np.float64)
        survival.append(float(weights @ chances))
    return np.asarray(survival, dtype=np.float64)


def block_tokens(p: Law, q: Law, gamma: int) -> float:
    """Tau of the rule BLOCK for a chain of i.i.d. tokens, both laws the same at each position.

    Args:
        p: [V] target's law.
        q: [V] draft's law.
        gamma: draft tokens a pass.

    Note:
        Never less than 1 + acceptance + ... + acceptance**gamma, what the token rule gives.

    Source:
        Sun et al., ICLR 2025, arXiv 2403.10444, theorem 2.
    """
    return 1.0 + float(block_survival(p, q, gamma).sum())


def leftover(p: Law, q: Law) -> Law:
    """[V] the law from which the token after a rejection is drawn: (p - q)+ normalised; the shipped step itself.

    Args:
        p: [V] target's law.
        q: [V] draft's law.

    Source:
        Leviathan et al., 2022, arXiv 2211.17192, algorithm 1.
    """
    rest: Law = residual(p[None, :], q[None, :])[0]
    return rest


def emitted_law(p: Law, q: Law) -> Law:
    """[V] the law of one emitted token by the token rule: min(p, q) + (1 - alpha) (p - q)+ normalised, which is p.

    Args:
        p: [V] target's law.
        q: [V] draft's law.

    Source:
        Leviathan et al., 2022, arXiv 2211.17192, appendix A.1.
    """
    kept = np.minimum(p, q)
    law: Law = kept + (p.sum() - kept.sum()) * leftover(p, q)
    return law


def greedy_draft_acceptance(p: Law, q: Law, k: int) -> float:
    """Acceptance of the k - 1 best draft tokens D and one sample of the rest: p(D) + sum_(x not in D) min(p, q_D).

    Args:
        p: [V] target's law.
        q: [V] draft's law; q_D is q without the set D of the k - 1, normalised.
        k: children of the node.

    Source:
        Hu et al., ICLR 2025 (greedy draft sampling).
    """
    rest = q.copy()
    top = np.argsort(-q, kind="stable")[: k - 1]
    rest[top] = 0.0
    mass = rest.sum()
    return float(p[top].sum()) + (acceptance(p, rest / mass) if mass > 0 else 0.0)


def optimal_acceptance(p: Law, q: Law, k: int) -> float:
    """The largest acceptance that any exact rule has for k i.i.d. draft tokens: min over S of p(S) + 1 - q(S)**k.

    Args:
        p: [V] target's law.
        q: [V] draft's law.
        k: children of the node.

    Note:
        The sets that matter hold the tokens with the largest q / p.

    Source:
        Hu et al., ICLR 2025 (optimal transport with membership costs).
    """
    ratio = np.where(p > 0, q / np.where(p > 0, p, 1.0), np.inf)
    order = np.argsort(-ratio, kind="stable")
    inside_p = np.concatenate([[0.0], np.cumsum(p[order])])
    inside_q = np.concatenate([[0.0], np.cumsum(q[order])])
    return float((inside_p + 1.0 - inside_q**k).min())


def expected_tokens(alpha: float, gamma: int) -> float:
    """tau, the expected emitted tokens a pass for a chain: 1 + alpha + ... + alpha**gamma.

    Args:
        alpha: acceptance rate in [0, 1], the same at each position.
        gamma: draft tokens a pass.

    Source:
        Leviathan et al., 2022, arXiv 2211.17192, equation 1.
    """
    return float(gamma + 1) if alpha == 1.0 else (1.0 - alpha ** (gamma + 1)) / (1.0 - alpha)


def speedup(alpha: float, gamma: int, c: float) -> float:
    """Plain time a token over speculative time a token, if a pass costs the same for any number of rows.

    Args:
        alpha: acceptance rate in [0, 1].
        gamma: draft tokens a pass.
        c: cost of one draft token in target passes, 0 or more.

    Source:
        Leviathan et al., 2022, arXiv 2211.17192, theorem 3.8.
    """
    return expected_tokens(alpha, gamma) / (gamma * c + 1.0)


def accepted_length_law(alpha: float, gamma: int) -> Law:
    """[gamma + 1] probability that exactly 0, 1, ... gamma draft tokens of a chain are accepted.

    Args:
        alpha: acceptance rate in [0, 1], the same at each position.
        gamma: draft tokens a pass.

    Source:
        Leviathan et al., 2022, arXiv 2211.17192, section 3.1 (a capped geometric law).
    """
    at_least = alpha ** np.arange(gamma + 2, dtype=np.float64)
    at_least[-1] = 0.0
    return at_least[:-1] - at_least[1:]
