"""How many tokens a pass do the look-up drafters give, against the rule of transformers' prompt lookup?

Plays files of `outrider replay record` with `ngram` and with the other rule, both on outrider's engine with the same
draft length, so that nothing but the look-up differs.

    python benchmarks/prompt_lookup.py RECORDS... [--length 8]
"""

import argparse
from collections.abc import Sequence, Set

from outrider.core.types import Proposal
from outrider.drafters.base import DraftContext
from outrider.drafters.ngram import NgramDrafter
from outrider.policies.fixed import Fixed
from outrider.replay.engine import ReplayEngine
from outrider.replay.records import TextRecord, read_texts
from outrider.replay.run import Sums


def lookup(tokens: Sequence[int], count: int, longest: int = 2, stops: Set[int] = frozenset()) -> list[int]:
    """What transformers' prompt lookup would propose.

    The last two tokens, else the last one, are searched from the beginning of the text; the first place that something
    follows counts. What stands there is copied up to the end of the text, and cut before the first end-of-text
    token.

    Args:
        tokens: the text.
        count: draft tokens at most.
        longest: longest run that is searched.
        stops: end-of-text tokens.

    Source:
        transformers 5, `PromptLookupCandidateGenerator` (Apache-2.0), re-told.
    """
    for size in range(min(longest, len(tokens) - 1), 0, -1):
        tail = list(tokens[-size:])
        for start in range(len(tokens) - size):
            if list(tokens[start : start + size]) == tail:
                copied = list(tokens[start + size : start + size + count])
                return copied[: next((place for place, token in enumerate(copied) if token in stops), count)]
    return []


class LookupDrafter(NgramDrafter):
    """The same rule as a drafter; it finds the place in the index that `ngram` has for first occurrences."""

    def __init__(self) -> None:
        super().__init__(2, 1, earliest=True, name="lookup")

    def _propose(self, context: DraftContext) -> Proposal:
        index = self._up_to_date(context)
        length, place = index.find()
        count = min(context.budget(self.name), context.plan.max_depth)
        copied = index.text[place : place + count].tolist() if length else []
        end = next((number for number, token in enumerate(copied) if token in context.stop_token_ids), count)
        return Proposal.chain(copied[:end], source=self.name)


def play(records: Sequence[TextRecord], drafter: NgramDrafter, length: int) -> dict[str, Sums]:
    """Sums by task, "all" last."""
    engine = ReplayEngine(records, [drafter], Fixed(length))
    tasks: dict[str, Sums] = {}
    for record in records:
        tasks[record.task] = tasks.get(record.task, Sums()) + Sums(engine.play(record).request.stats, 1)
    return tasks | {"all": sum(tasks.values(), Sums())}


def main() -> None:
    """Print one line a task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+")
    parser.add_argument("--length", type=int, default=8)
    given = parser.parse_args()
    records, _ = read_texts(given.records)
    ours, theirs = play(records, NgramDrafter(), given.length), play(records, LookupDrafter(), given.length)
    print(f"{'task':16} texts  ngram  lookup  ratio  wasted rows a pass")
    for task, sums in ours.items():
        other = theirs[task]
        tau, tau_other = sums.stats.block_efficiency, other.stats.block_efficiency
        wasted = f"{sums.wasted_rows:.2f} {other.wasted_rows:.2f}"
        print(f"{task:16} {sums.texts:5}  {tau:.3f}  {tau_other:.3f}   {tau / tau_other:.3f}  {wasted}")


if __name__ == "__main__":
    main()
