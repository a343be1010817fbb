"""Paths, verdicts, refusals and limits of the rules, one row as good as alone."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.analysis.enumerate import EnumeratingCoins
from outrider.bench.toys import PROMPT, Toy, ToyLaws, draw_tree, emitted
from outrider.core.coins import At, BatchCoins, Stream, race
from outrider.core.fit import FITTING_DRAWS
from outrider.core.params import Draw, Rule, SamplingParams
from outrider.core.tree import children, path
from outrider.core.types import Proposal
from outrider.core.verify import verify
from strategies import proposals

EXACT = [rule for rule in Rule if rule.is_exact]


def sampled_for(rule):
    """A draw by chance that the rule can judge."""
    return Draw.WITHOUT_REPLACEMENT if rule is Rule.TRAVERSAL else Draw.IID


class ScriptedCoins:
    """Coins whose MATCH answers are a given text and whose other answers are a given yes or no."""

    def __init__(self, text=(), accepts=True):
        self.text, self.accepts, self.probs = text, accepts, []

    def sample(self, law, at: At):
        return np.asarray([self.text[position - len(PROMPT)] for position in at.position.tolist()])

    def accept(self, prob, at):
        self.probs += np.asarray(prob).tolist()
        return np.asarray(prob) > (0.0 if self.accepts else 1.0)

    def draw(self, law, at):
        return np.asarray(law).argmax(axis=1)


class FixedLaws:
    """The same rows whatever the path."""

    def __init__(self, rows):
        self.rows = rows

    def at(self, requests, nodes):
        return self.rows[np.zeros(len(requests), dtype=np.int64)]


def judge(rule, proposal, law, coins):
    return verify([rule], FixedLaws(law), [proposal], coins, [len(PROMPT)])[0]


class RacingToyLaws(ToyLaws):
    """Laws that also race unwritten, save after some nodes."""

    can_race = True

    def __init__(self, target, trees, silent=()):
        super().__init__(target, trees)
        self.silent, self.calls = set(silent), []

    def race(self, requests, nodes, states):
        self.calls.append(list(zip(requests.tolist(), nodes.tolist(), strict=True)))
        tokens = race(np.asarray(self.at(requests, nodes)), states)
        return np.asarray([-1 if node in self.silent else token for node, token in zip(nodes, tokens, strict=True)])


@given(
    st.lists(proposals(3, 7), min_size=1, max_size=4), st.integers(0, 2**40), st.sets(st.integers(-1, 6), max_size=3)
)
def test_racing_ahead_of_the_walks_changes_no_verdict(trees, seed, silent):
    """Nodes that are raced before anybody stands there, and ones that are left to the written-out law."""
    target, coins = Toy(1), BatchCoins([Stream(seed + number, 0) for number in range(len(trees))])
    given = [Rule.MATCH] * len(trees), trees, coins, [len(PROMPT)] * len(trees)

    def judged(laws):
        return verify(given[0], laws, *given[1:])

    assert judged(RacingToyLaws(target, trees, silent)) == judged(ToyLaws(target, trees))


def test_a_lonely_chain_is_raced_in_few_calls():
    """Twice as many nodes each time; with company each walk brings one."""
    chain = Proposal.chain([0] * 9, source="x")
    laws = RacingToyLaws(Toy(1), [chain])
    always = next(
        seed
        for seed in range(100_000)
        if len(verify([Rule.MATCH], ToyLaws(Toy(1), [chain]), [chain], BatchCoins([Stream(seed, 0)]), [2])[0].nodes) > 4
    )
    (result,) = verify([Rule.MATCH], laws, [chain], BatchCoins([Stream(always, 0)]), [2])
    assert len(result.nodes) > 4
    assert [len(call) for call in laws.calls][:2] == [2, 4]
    pair = RacingToyLaws(Toy(1), [chain] * 2)
    verify([Rule.MATCH] * 2, pair, [chain] * 2, BatchCoins([Stream(always, 0)] * 2), [2, 2])
    assert pair.calls[0] == [(0, -1), (1, -1)]


@given(proposals(3, 7), st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_match_emits_the_sampled_path_for_every_tree(proposal, text):
    target = Toy(1)
    (result,) = verify([Rule.MATCH], ToyLaws(target, [proposal]), [proposal], ScriptedCoins(text), [len(PROMPT)])
    block = emitted(proposal, result)
    assert block == tuple(text[: len(block)])
    assert result.nodes == path(proposal.parents, result.nodes[-1] if result.nodes else -1)
    below = children(proposal.parents)[result.nodes[-1] if result.nodes else -1]
    assert result.next_token not in [proposal.tokens[child] for child in below]
    assert result.ended == ("correction" if below else "bonus")


def test_match_emits_the_sampled_path_for_all_small_trees():
    """All binary trees of three levels over two tokens, all texts: not one case left to chance."""
    shapes = [(0, 1), (0,), (1,), ()]
    for root, left, right in itertools.product(shapes, repeat=3):
        tokens, parents = list(root), [-1] * len(root)
        for first, below in ((0, left), (1, right)):
            if first in root:
                tokens += below
                parents += [root.index(first)] * len(below)
        proposal = Proposal(
            np.asarray(tokens, dtype=np.int64),
            np.asarray(parents, dtype=np.int64),
            np.zeros(len(tokens), dtype=np.int64),
            ("toy",) * len(tokens),
            np.ones(len(tokens)),
        )
        for text in itertools.product((0, 1), repeat=3):
            block = emitted(proposal, judge(Rule.MATCH, proposal, np.full((1, 2), 0.5), ScriptedCoins(text)))
            assert block == text[: len(block)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter_seed", [2, 7])
def test_a_seed_says_one_text_however_it_is_drafted(make, temperature, drafter_seed):
    """SD-37, AX-01: FasterDecoding/Medusa#99. Every shape and draw, penalties on, against plain decoding."""
    params = SamplingParams(temperature=temperature, top_p=0.9, frequency_penalty=0.4, bad_words=[[1, 2]])

    def decode(seed, widths, draw):
        text = ()
        for round_ in range(12):
            if len(text) >= 8:
                break
            target, drafter = (Toy(s, 5, p, committed=text, make=make) for s, p in ((2, params), (drafter_seed, None)))
            stream, start = Stream(seed, round_), len(PROMPT) + len(text)
            if draw == Draw.SHARED_NOISE:
                tree = Proposal.chain(stream.shared(drafter.law(()), start, 1), source="toy", draw=draw)
            else:
                tree = draw_tree(stream, drafter, widths, draw)
            (result,) = verify([Rule.MATCH], ToyLaws(target, [tree]), [tree], BatchCoins([stream]), [start])
            text += emitted(tree, result)
        return text[:8]

    for seed in range(6):
        plain = decode(seed, (), Draw.DETERMINISTIC)
        for draw, widths in itertools.product(Draw, [(1, 1, 1), (2, 2), (4,)]):
            assert decode(seed, widths, draw) == plain


def test_laws_are_pulled_once_for_each_visited_node():
    target, proposal = Toy(1), Proposal.chain([2, 1, 0], source="toy")
    laws = ToyLaws(target, [proposal])
    verify([Rule.MATCH], laws, [proposal], ScriptedCoins((2, 1, 1)), [len(PROMPT)])
    assert laws.pulled == [(0, -1), (0, 0), (0, 1)]


@pytest.mark.parametrize("draw", [Draw.DETERMINISTIC, Draw.IID, Draw.WITHOUT_REPLACEMENT, Draw.TOP_PLUS_SAMPLE])
def test_a_row_is_judged_as_if_it_were_alone(make, draw):
    """AX-19, AX-20: vllm-project/vllm PR 31908, PR 29699. Rules, shapes and draws mixed in one batch."""
    target, drafter = Toy(2, 5, make=make), Toy(3, 5, make=make)
    streams = [Stream(seed, 4) for seed in range(40)]
    trees, rules = [], []
    for seed, stream in enumerate(streams):
        kind = draw if seed % 3 else Draw.DETERMINISTIC
        trees.append(draw_tree(stream, drafter, [(2, 2), (1, 1, 1), (3,), ()][seed % 4], kind))
        fitting = [rule for rule in Rule if kind in FITTING_DRAWS[rule]]
        fitting = [rule for rule in fitting if rule is not Rule.BLOCK or seed % 4 == 1]
        rules.append(fitting[seed // 3 % len(fitting)])
    positions = [len(PROMPT) + seed for seed in range(40)]
    together = verify(rules, ToyLaws(target, trees), trees, BatchCoins(streams), positions)
    alone = [
        verify([rule], ToyLaws(target, [tree]), [tree], BatchCoins([stream]), [position])[0]
        for rule, tree, stream, position in zip(rules, trees, streams, positions, strict=True)
    ]
    assert together == alone


def test_greedy_target_refuses_a_likely_but_second_token():
    """SD-02: jaymody/speculative-sampling#3 and #9. At temperature 0 both laws are one-hot before the rule."""
    logits = np.log(np.asarray([[0.3, 0.5, 0.2]]))
    target = Toy(1, params=SamplingParams())
    law = target.processor.law(logits, [target.processor.start(target.history)])
    for rule in Rule:
        draft = Proposal.chain([0], source="toy", draw=sampled_for(rule), probs=np.asarray([[0.2, 0.1, 0.7]]))
        result = judge(rule, draft, law, BatchCoins([Stream(5, 0)]))
        assert (result.nodes, result.next_token, result.ended) == ((), 1, "correction")


def test_disjoint_supports_accept_nothing():
    """AX-05: huggingface/transformers PR 28508."""
    law = np.asarray([[0.5, 0.5, 0.0, 0.0]])
    draft = Proposal.chain([2], source="toy", draw=Draw.IID, probs=np.asarray([[0.0, 0.0, 0.5, 0.5]]))
    results = [judge(Rule.TOKEN, draft, law, BatchCoins([Stream(seed, 0)])) for seed in range(300)]
    assert all(result.nodes == () and result.next_token in (0, 1) for result in results)


def test_sampled_requests_do_not_follow_the_argmax():
    """AX-07: lablup/mlxcel#902. A perfect drafter of the argmax, a flat target: frequencies follow the law."""
    law = np.asarray([[0.4, 0.3, 0.3]])
    draft = Proposal.chain([0], source="toy")
    for rule in EXACT:
        firsts = [emitted(draft, judge(rule, draft, law, BatchCoins([Stream(s, 0)])))[0] for s in range(2000)]
        assert np.bincount(firsts, minlength=3) / 2000 == pytest.approx([0.4, 0.3, 0.3], abs=0.04)


@pytest.mark.parametrize("rule", list(Rule))
def test_every_emitted_bigram_is_possible(rule):
    """AX-08: openvinotoolkit/openvino.genai#4190. The correction comes from the rejected token's row."""
    following = {0: 1, 1: 2, 2: 3, 3: 0}
    drafts = [[1, 3, 2, 0], [2, 2, 2, 2], [1], [0], [1, 2, 3, 0]]

    class Bigrams:
        def __init__(self, proposal):
            self.proposal = proposal

        def at(self, requests, nodes):
            last = [int(self.proposal.tokens[node]) if node >= 0 else 0 for node in nodes.tolist()]
            return np.eye(4)[[following[token] for token in last]] * 0.75 + 0.25 * np.eye(4)[last]

    for draft, seed in itertools.product(drafts, range(40)):
        proposal = Proposal.chain(draft, source="toy")
        (result,) = verify([rule], Bigrams(proposal), [proposal], BatchCoins([Stream(seed, 0)]), [1])
        text = (0, *emitted(proposal, result))
        assert all(after in (before, following[before]) for before, after in itertools.pairwise(text))


@pytest.mark.parametrize("rule", list(Rule))
def test_a_law_that_is_no_number_fails_its_own_request_only(make, rule):
    """SD-09: ohdearquant/lattice PR 375."""
    good = Toy(1, make=make)
    proposal = Proposal.chain([0, 1], source="toy")

    class Broken(ToyLaws):
        def at(self, requests, nodes):
            rows = super().at(requests, nodes)
            rows[make((requests == 1) & (nodes >= 0))] = float("nan")
            return rows

    coins = ScriptedCoins((0, 1, 2, 0))
    results = verify([rule] * 2, Broken(good, [proposal] * 2), [proposal] * 2, coins, [len(PROMPT)] * 2)
    assert results[0].nodes == (0, 1)
    assert (results[1].nodes, results[1].next_token, results[1].ended) == ((0,), -1, "invalid")


def test_a_draft_law_that_is_no_number_is_never_accepted():
    law = np.asarray([[0.2, 0.8]])
    draft = Proposal.chain([0], source="toy", draw=Draw.IID, probs=np.full((1, 2), np.nan))
    result = judge(Rule.TOKEN, draft, law, ScriptedCoins())
    assert (result.nodes, result.next_token) == ((), 1)


def test_equal_laws_accept_always_and_fall_back_to_the_target():
    """SD-09: duoan/TorchCode#16. p equal to q is accepted; if the coin says no all the same, p is drawn from."""
    law = np.asarray([[0.25, 0.75]])
    draft = Proposal.chain([0], source="toy", draw=Draw.IID, probs=law)
    coins = ScriptedCoins(accepts=False)
    assert judge(Rule.TOKEN, draft, law, coins).next_token == 1
    assert coins.probs == [1.0]


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("token", [-1, 3, 151_936])
def test_tokens_beyond_the_vocabulary_are_never_accepted(make, rule, token):
    """SD-11: a draft with padded embedding rows proposes an id that the target does not know."""
    target = Toy(1, make=make)
    for draft in (
        Proposal.chain([token, 0], source="toy"),
        Proposal.chain([token, 0], source="toy", draw=sampled_for(rule), probs=make(np.full((2, 3), 1 / 3))),
    ):
        (result,) = verify([rule], ToyLaws(target, [draft]), [draft], BatchCoins([Stream(1, 0)]), [9])
        assert result.nodes == ()
        assert 0 <= result.next_token < 3


def test_draws_that_do_not_fit_the_rule_are_refused():
    law = np.full((1, 3), 1 / 3)
    two = Proposal(
        np.asarray([0, 1]),
        np.asarray([-1, -1]),
        np.asarray([int(Draw.IID), int(Draw.WITHOUT_REPLACEMENT)]),
        ("toy",) * 2,
        np.ones(2),
        law,
    )
    with pytest.raises(ValueError, match="IID and WITHOUT_REPLACEMENT"):
        judge(Rule.TOKEN, two, law, ScriptedCoins())
    with pytest.raises(ValueError, match="SHARED_NOISE"):
        judge(Rule.TOKEN, Proposal.chain([0], source="toy", draw=Draw.SHARED_NOISE), law, ScriptedCoins())
    with pytest.raises(ValueError, match="no probs"):
        judge(Rule.TOKEN, Proposal.chain([0], source="toy", draw=Draw.IID), law, ScriptedCoins())
    assert judge(Rule.MATCH, two, law, ScriptedCoins((1, 0))).nodes == (1,)


def test_no_coin_is_asked_for_twice_in_a_walk():
    """Each key at most once: the enumeration refuses a second question for one key."""
    target, drafter = Toy(2, 4), Toy(3, 4)
    for draw in (Draw.IID, Draw.TOP_PLUS_SAMPLE):
        proposal = draw_tree(Stream(1, 0), drafter, (2, 2, 1), draw)
        verify([Rule.TOKEN], ToyLaws(target, [proposal]), [proposal], EnumeratingCoins(), [5])
    coins = EnumeratingCoins()
    at = At(np.asarray([0]), np.asarray([-1]), np.asarray([5]))
    coins.draw(np.asarray([[0.5, 0.5]]), at)
    with pytest.raises(ValueError, match="twice"):
        coins.draw(np.asarray([[0.5, 0.5]]), at)


@pytest.mark.parametrize(("rule", "draw"), [(Rule.BLOCK, Draw.IID), (Rule.TRAVERSAL, Draw.WITHOUT_REPLACEMENT)])
def test_a_law_that_does_not_exist_ends_a_request_only_where_it_is_reached(rule, draw):
    """Behind the second token every token is banned: the text ends there or before, and never with a token."""
    target, drafter = Toy(1), Toy(2)

    class Broken(ToyLaws):
        def at(self, requests, nodes):
            rows = super().at(requests, nodes)
            return np.full_like(rows, np.nan) if nodes[0] == 1 else rows

    reached = set()
    for seed in range(200):
        tree = draw_tree(Stream(seed, 0), drafter, (1, 1, 1), draw)
        (result,) = verify([rule], Broken(target, [tree]), [tree], BatchCoins([Stream(seed, 0)]), [len(PROMPT)])
        assert (result.ended == "invalid") == (result.nodes == (0, 1)) == (result.next_token == -1)
        reached.add(len(result.nodes))
    assert reached == {0, 1, 2}


def test_the_approximate_rule_keeps_likely_tokens_and_nothing_else():
    law = np.asarray([[0.5, 0.3, 0.15, 0.05]])  # entropy 1.142: the threshold is 0.09 exp(-1.142) = 0.0287
    tree = Proposal(np.asarray([2, 1, 3]), np.full(3, -1), np.zeros(3, dtype=np.int64), ("toy",) * 3, np.ones(3))
    assert judge(Rule.TYPICAL, tree, law, ScriptedCoins()).nodes == (1,)
    sure = np.asarray([[0.98, 0.01, 0.005, 0.005]])
    refused = judge(Rule.TYPICAL, tree, sure, ScriptedCoins())
    assert (refused.nodes, refused.next_token, refused.ended) == ((), 0, "correction")
    assert judge(Rule.TYPICAL, Proposal.chain([9], source="toy"), law, ScriptedCoins()).nodes == ()


def test_tensors_on_the_cpu_give_the_verdicts_of_numpy():
    import torch

    cases = [
        (Rule.TOKEN, Draw.IID, (2, 1)),
        (Rule.TOKEN, Draw.WITHOUT_REPLACEMENT, (2, 1)),
        (Rule.BLOCK, Draw.IID, (1, 1, 1)),
        (Rule.TRAVERSAL, Draw.WITHOUT_REPLACEMENT, (2, 2)),
        (Rule.TYPICAL, Draw.DETERMINISTIC, (2, 2)),
    ]
    for rule, draw, widths in cases:
        verdicts = []
        for make in (np.asarray, torch.as_tensor):
            target, drafter = Toy(2, 6, make=make), Toy(3, 6, make=make)
            streams = [Stream(seed, 0) for seed in range(50)]
            trees = [draw_tree(stream, drafter, widths, draw) for stream in streams]
            laws = ToyLaws(target, trees)
            verdicts.append(verify([rule] * 50, laws, trees, BatchCoins(streams), [7] * 50))
        assert verdicts[0] == verdicts[1]
