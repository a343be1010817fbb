import logging
from dataclasses import replace

import numpy as np
import pytest
from drafters_helpers import NOTHING_SEEN, context, kept, plan

from outrider.core.params import Draw
from outrider.core.types import Plan, Proposal
from outrider.drafters.base import Needs
from outrider.drafters.ensemble import Ensemble
from outrider.drafters.none import NoDrafter
from outrider.errors import InvalidRequestError

VOCAB = 16


class Fake(NoDrafter):
    """Proposes a fixed answer; records its calls; raises where it is told to."""

    def __init__(self, name, answer=None, *, fails=(), needs=None, score=None):
        self.name, self.answer, self.fails, self.score = name, answer or Proposal.empty(), set(fails), score
        self.needs = needs or Needs()
        self.calls = []

    def _note(self, what, request_id):
        self.calls.append((what, request_id))
        if what in self.fails:
            raise RuntimeError(f"{self.name} cannot {what}")

    def begin(self, request_id, tokens):
        self._note("begin", request_id)

    def propose(self, contexts):
        self._note("propose", tuple(c.request_id for c in contexts))
        return [self.answer for _ in contexts]

    def observe(self, request_id, kept_tokens, observation):
        self._note("observe", request_id)
        return self.score

    def end(self, request_id):
        self._note("end", request_id)

    def drop(self, request_id):
        self._note("drop", request_id)


def chain(tokens, name="a", confidence=None, **more):
    return Proposal.chain(tokens, source=name, confidence=confidence, **more)


def several(*names, budget=4, depth=4, width=1):
    return Plan(tuple((name, budget) for name in names), depth, width)


def ask(ensemble, wanted, ids=("r",), **more):
    contexts = [context([1, 2], wanted, request_id=i, vocab_size=VOCAB, **more) for i in ids]
    return ensemble.propose(contexts)


def started(*drafters, ids=("r",)):
    ensemble = Ensemble(drafters)
    ensemble.load()
    for request_id in ids:
        ensemble.begin(request_id, [1, 2])
    return ensemble


def test_each_drafter_is_asked_once_with_all_its_requests():
    a, b = Fake("a", chain([3])), Fake("b", chain([4], "b"))
    ensemble = started(a, b, ids=("x", "y", "z"))
    contexts = [
        context([1], several("a"), request_id="x"),
        context([1], several("b"), request_id="y"),
        context([1], several("a"), request_id="z"),
    ]
    answers = ensemble.propose(contexts)
    assert [p.tokens.tolist() for p in answers] == [[3], [4], [3]]
    assert a.calls[-1] == ("propose", ("x", "z"))
    assert b.calls[-1] == ("propose", ("y",))


def test_a_plan_that_is_off_asks_nobody():
    a = Fake("a", chain([3]))
    ensemble = started(a)
    assert ask(ensemble, Plan())[0].num_nodes == 0
    assert ask(ensemble, several("a", depth=0))[0].num_nodes == 0
    assert ask(ensemble, several("a", budget=0))[0].num_nodes == 0
    assert ask(ensemble, several("unknown"))[0].num_nodes == 0
    assert a.calls == [("begin", "r")]


def test_for_a_chain_the_largest_sum_of_path_confidences_is_taken_whole():
    a, b = Fake("a", chain([3, 4, 5], confidence=[0.3, 0.9, 0.9])), Fake("b", chain([6], "b", [0.95]))
    assert ask(started(a, b), several("a", "b"))[0].tokens.tolist() == [6]
    b.answer = chain([6], "b", [0.5])
    assert ask(started(a, b), several("a", "b"))[0].tokens.tolist() == [3, 4, 5]


def test_the_plan_breaks_ties_by_its_order():
    a, b = Fake("a", chain([3])), Fake("b", chain([6], "b"))
    assert ask(started(a, b), several("b", "a"))[0].source == ("b",)


def test_trees_are_merged_within_the_plan():
    a, b = Fake("a", chain([3, 4], confidence=[0.2, 0.5])), Fake("b", chain([3, 5], "b", [0.9, 0.4]))
    merged = ask(started(a, b), several("a", "b", width=2))[0]
    assert merged.tokens.tolist() == [3, 4, 5]
    assert merged.parents.tolist() == [-1, 0, 0]
    assert merged.source == ("a", "a", "b")
    assert merged.confidence.tolist() == [0.9, 0.5, 0.4]


def test_only_the_first_drafter_is_asked_where_tokens_are_sampled():
    a, b = Fake("a"), Fake("b", chain([6], "b"))
    ensemble = started(a, b)
    assert ask(ensemble, several("a", "b"), draw=Draw.IID)[0].num_nodes == 0
    assert ("propose", ("r",)) not in b.calls


@pytest.mark.parametrize("what", ["begin", "propose", "observe", "end", "drop"])
def test_a_drafter_that_raises_loses_its_turn_and_nobody_else(what, caplog):
    bad, good = Fake("bad", chain([3], "bad", [0.1]), fails={what}), Fake("good", chain([4, 5], "good"), score=0.5)
    with caplog.at_level(logging.WARNING):
        ensemble = started(bad, good)
        for _ in range(2):
            assert ask(ensemble, several("bad", "good"))[0].tokens.tolist() == [4, 5]
            assert ensemble.observe("r", kept([4, 5]), NOTHING_SEEN) == {"good": 0.5}
        ensemble.drop("r")
        ensemble.begin("r", [1, 2])
        ensemble.end("r")
    assert ensemble.num_failures["bad"] >= 1
    assert ensemble.num_failures["good"] == 0
    assert sum("bad" in record.message for record in caplog.records) == 1


def test_a_request_whose_state_is_in_doubt_is_not_drafted_for_again():
    bad = Fake("bad", chain([3], "bad"), fails={"observe"})
    ensemble = started(bad)
    assert ask(ensemble, several("bad"))[0].num_nodes == 1
    ensemble.observe("r", kept([4]), NOTHING_SEEN)
    assert bad.calls[-1] == ("drop", "r")  # what it holds may be wrong, so nothing of it is kept
    assert ask(ensemble, several("bad"))[0].num_nodes == 0


BROKEN = {
    "an illegal id": chain([3, 99]),
    "a negative id": chain([-1]),
    "a parent that comes later": replace(chain([3, 4]), parents=np.array([1, -1])),
    "arrays of different lengths": replace(chain([3, 4]), confidence=np.ones(1)),
    "no law for a sampled token": chain([3], draw=Draw.IID),
    "laws of another width": chain([3], draw=Draw.IID, probs=np.ones((1, 3)) / 3),
    "a confidence that is no probability": chain([3], confidence=[float("nan")]),
    "no proposal at all": None,
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_tree_of_known_tokens_is_never_verified(what):
    fake = Fake("a")
    fake.answer = BROKEN[what]
    ensemble = started(fake)
    assert ask(ensemble, several("a"))[0].num_nodes == 0
    assert ensemble.num_failures["a"] == 1


def test_what_exceeds_the_plan_is_cut_by_shape():
    long = Fake("a", chain([3, 4, 5, 6, 7, 8]))
    ensemble = started(long)
    assert ask(ensemble, several("a", budget=4, depth=9))[0].tokens.tolist() == [3, 4, 5, 6]
    assert ask(ensemble, several("a", budget=9, depth=2))[0].tokens.tolist() == [3, 4]
    wide = replace(chain([3, 4, 5, 6]), parents=np.array([-1, -1, 0, 1]))
    assert ask(started(Fake("a", wide)), several("a"))[0].tokens.tolist() == [3, 5]
    probs = np.full((6, VOCAB), 1 / VOCAB)
    sampled = started(Fake("a", chain([3, 4, 5, 6, 7, 8], draw=Draw.IID, probs=probs)))
    assert ask(sampled, several("a", budget=9, depth=2), draw=Draw.IID)[0].probs.shape == (2, VOCAB)


def test_the_wrong_number_of_proposals_loses_the_turn():
    fake = Fake("a", chain([3]))
    fake.propose = lambda contexts: []
    ensemble = started(fake)
    assert ask(ensemble, several("a"))[0].num_nodes == 0
    assert ensemble.num_failures["a"] == 1


def test_time_is_divided_by_nodes_and_else_evenly():
    ensemble = started(Fake("a"), ids=("x", "y"))
    contexts = [context([1], plan("a", 4), request_id=i) for i in ("x", "y")]
    ensemble.seconds = {"x": 0.0, "y": 0.0}
    ensemble._share_time(contexts, [chain([1, 2, 3]), chain([4])], 8.0)
    assert ensemble.seconds == {"x": 6.0, "y": 2.0}
    ensemble._share_time(contexts, [Proposal.empty(), Proposal.empty()], 2.0)
    assert ensemble.seconds == {"x": 7.0, "y": 3.0}
    ask(ensemble, several("a"), ids=("x",))
    assert set(ensemble.seconds) == {"x"}
    assert ensemble.seconds["x"] > 0


def test_needs_and_names_are_those_of_all():
    ensemble = Ensemble([Fake("a", needs=Needs((4, 1), 2)), Fake("b", needs=Needs((1, 2), 5))])
    assert ensemble.needs == Needs((1, 2, 4), 5)
    assert ensemble.names == ("a", "b")
    assert Ensemble([]).needs == Needs()
    assert ensemble.state_bytes == 0


def test_two_drafters_of_one_name_are_refused():
    with pytest.raises(InvalidRequestError, match="a, a"):
        Ensemble([Fake("a"), Fake("a")])


def test_unknown_requests_are_ignored_and_ended_ones_forgotten():
    a = Fake("a", chain([3]))
    ensemble = started(a)
    ensemble.end("never seen")
    ensemble.drop("never seen")
    assert ensemble.observe("never seen", kept([1]), NOTHING_SEEN) == {}
    ensemble.end("r")
    assert a.calls == [("begin", "r"), ("end", "r")]
    assert ask(ensemble, several("a"))[0].num_nodes == 0
