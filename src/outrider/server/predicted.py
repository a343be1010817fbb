"""How an expected output and the real one went together: which of its places were accepted, which were not followed.

The cursor of the drafter walks along the expected output once more, told the same tokens. This module knows tokens and
who wrote them. Invariants: accepted and rejected places are disjoint, each counts at most once, and together they are
never more than the emitted tokens; nothing is rejected before something was accepted.
"""

from collections.abc import Sequence

from outrider.drafters.following import Follower

__all__ = ["Predicted"]


class Predicted:
    """Counts places of one expected output for one text.

    A token that was accepted as a draft from it marks its place as accepted. Where the cursor stood behind a match and
    the text went another way, the place that was expected there is rejected.

    Args:
        prediction: expected tokens.
    """

    def __init__(self, prediction: Sequence[int]) -> None:
        self._follower = Follower(prediction)
        self._accepted: set[int] = set()
        self._rejected: set[int] = set()

    def feed(self, token: int, *, is_accepted: bool) -> None:
        """Take note of an emitted token, and whether it was accepted as a draft from the expected output."""
        expected = self._follower.expected
        places = [(length, at) for length, at in self._follower.places if at < len(expected)]
        if is_accepted:
            self._accepted.update([at for _, at in places if expected[at] == token][:1])
        elif self._accepted and places and places[0][0] > 0 and expected[places[0][1]] != token:
            self._rejected.add(places[0][1])
        self._follower.feed(token)

    @property
    def num_accepted(self) -> int:
        """Places from which a token was accepted."""
        return len(self._accepted)

    @property
    def num_rejected(self) -> int:
        """Places at which the text went another way, and which it did not come back to."""
        return len(self._rejected - self._accepted)
