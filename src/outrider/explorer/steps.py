"""The view of one round, step by step: what is drafted, what the rule asks, what the coins answer, in words.

The round is watched, not re-enacted (`analysis.watch`). Invariant: the steps end with the very tokens that are emitted.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from outrider.analysis.simulate import Toy
from outrider.analysis.watch import Question, Watched, watch
from outrider.core.params import Rule
from outrider.core.tree import path
from outrider.explorer.exactness import LETTERS

__all__ = ["round_in_steps"]


def round_in_steps(toy: Toy, number: int, seed: int) -> dict[str, Any]:
    """One round for the page.

    Args:
        toy: what is simulated.
        number: which round.
        seed: the rounds are a function of it.
    """
    seen = watch(toy, number, seed)
    nodes = [_node(toy, seen, node) for node in range(seen.proposal.num_nodes)]
    emitted = [*(_letter(seen.proposal.tokens[node]) for node in seen.result.nodes), _letter(seen.result.next_token)]
    steps = [_drafted(node) for node in nodes]
    steps += [_asked(toy, seen, question) for question in seen.questions]
    steps.append(_ended(seen, emitted))
    laws = _rows("target p", toy.p.tolist()) + _rows("draft q", toy.q.tolist())
    return {"nodes": nodes, "steps": steps, "emitted": emitted, "laws": laws, "accepted": list(seen.result.nodes)}


def _rows(kind: str, law: Sequence[float]) -> list[dict[str, Any]]:
    """Rows of the plot of the laws."""
    return [{"token": LETTERS[token], "kind": kind, "probability": chance} for token, chance in enumerate(law)]


def _letter(token: Any) -> str:
    return LETTERS[int(token)]


def _node(toy: Toy, seen: Watched, node: int) -> dict[str, Any]:
    token = int(seen.proposal.tokens[node])
    return {
        "node": node,
        "parent": int(seen.proposal.parents[node]),
        "letter": _letter(token),
        "p": float(toy.p[token]),
        "q": float(toy.q[token]),
    }


def _drafted(node: dict[str, Any]) -> dict[str, Any]:
    after = "the last emitted token" if node["parent"] < 0 else f"draft token {node['parent'] + 1}"
    laws = f"It gives it q = {node['q']:.3f}, the target p = {node['p']:.3f}."
    text = f"The draft puts {node['letter']} after {after}. {laws}"
    return {"kind": "draft", "node": node["node"], "text": text, "law": None, "coin": None}


def _asked(toy: Toy, seen: Watched, question: Question) -> dict[str, Any]:
    words = {"sample": _sampled, "accept": _judged, "draw": _drawn}[question.kind]
    law = None if question.law is None else _rows("drawn from", question.law)
    state = question.kind if question.kind != "accept" else ("accept" if question.accepted else "reject")
    text, coin = words(toy, seen, question), _coin(question)
    return {"kind": state, "node": question.node, "text": text, "law": law, "coin": coin}


def _coin(question: Question) -> list[dict[str, Any]] | None:
    """Rows of the plot of the coin: where it says yes, where no, and where it fell."""
    if question.chance is None:
        return None
    parts = [("accepted", 0.0, question.chance), ("refused", question.chance, 1.0)]
    return [{"answer": name, "from": low, "to": high, "coin": question.coin} for name, low, high in parts]


def _sampled(toy: Toy, seen: Watched, question: Question) -> str:  # noqa: ARG001 - one signature for all kinds
    after = _after(seen, question.node)
    below = [node for node in range(seen.proposal.num_nodes) if int(seen.proposal.parents[node]) == question.node]
    token = _letter(question.token)
    if any(int(seen.proposal.tokens[node]) == question.token for node in below):
        return (
            f"{after} the target itself draws {token}. The draft has it there, so it is accepted and the walk goes on."
        )
    told = "no draft token stands there" if not below else "the draft has nothing like it there"
    return f"{after} the target itself draws {token}; {told}, so {token} is emitted and the round ends."


def _judged(toy: Toy, seen: Watched, question: Question) -> str:
    letter = _letter(seen.proposal.tokens[question.node])
    answer = "accepted" if question.accepted else "refused"
    coin = f"the coin shows {question.coin:.3f}, so it is {answer}"
    if toy.rule is Rule.TOKEN:
        return f"{letter} may stay with probability min(1, p / q) = {question.chance:.3f}; {coin}."
    kept = " ".join(_letter(seen.proposal.tokens[node]) for node in path(seen.proposal.parents, question.node))
    return f"The path {kept} may stay as a whole with probability {question.chance:.3f}; {coin}."


def _drawn(toy: Toy, seen: Watched, question: Question) -> str:
    after, token = _after(seen, question.node), _letter(question.token)
    if seen.result.ended == "bonus":
        return f"Everything was accepted. {after} the same pass of the target also gives a bonus token: {token}."
    whole = np.allclose(question.law or (), toy.p)
    law = "the target's law" if whole else "what is left of the target's law, (p - q)+ made to add up to 1"
    return f"{after} the correction is drawn from {law}: {token}."


def _after(seen: Watched, node: int) -> str:
    return "At the start" if node < 0 else f"After {_letter(seen.proposal.tokens[node])}"


def _ended(seen: Watched, emitted: Sequence[str]) -> dict[str, Any]:
    count = len(emitted)
    text = f"The round emits {' '.join(emitted)}: {count} token{'s' if count > 1 else ''} for one pass of the target."
    node = seen.result.nodes[-1] if seen.result.nodes else -1
    return {"kind": "end", "node": node, "text": text, "law": None, "coin": None}
