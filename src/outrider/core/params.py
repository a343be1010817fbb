"""What a request may ask: how tokens are drawn, when it ends and how it may be speculated on.

This module holds and checks values. It does not know what a token means. Invariant: an object of these classes is
valid; a value that no request could mean is refused with a sentence that names it.
"""

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np

from outrider.errors import InvalidRequestError

__all__ = ["GREEDY_TEMPERATURE", "Draw", "Rule", "SamplingParams", "Speculation", "is_whole_number"]

GREEDY_TEMPERATURE = 1e-5
"""Temperatures below this are greedy, on every path: target, draft model, bonus token and plain decoding."""


class Rule(enum.Enum):
    """How the target judges a proposal. All but TYPICAL keep the target's law; TYPICAL is never chosen unasked.

    Attributes:
        MATCH: draw the target's own token with its own noise and keep drafts that equal it; the same seed gives the
            same text with and without drafts. Any draw, any tree.
        TOKEN: accept and correct token by token (speculative sampling), children of a node in turn; any draw of its
            own chance, any tree.
        BLOCK: judge a chain as a whole, from its end; on average it accepts at least as much as TOKEN.
        TRAVERSAL: the same for trees, leaf by leaf.
        TYPICAL: accept whatever the target finds likely enough. Approximate: the output law is another one.
    """

    MATCH = "match"
    TOKEN = "token"
    BLOCK = "block"
    TRAVERSAL = "traversal"
    TYPICAL = "typical"

    @property
    def is_exact(self) -> bool:
        """Whether what is emitted has the target's law."""
        return self is not Rule.TYPICAL


class Draw(enum.IntEnum):
    """How a draft token came about; it decides what a law-exact rule has to correct.

    Attributes:
        DETERMINISTIC: without chance, as lookup and the most probable tokens are.
        SHARED_NOISE: with the noise that the target will draw with (MATCH).
        IID: siblings drawn one by one from the drafter's law.
        WITHOUT_REPLACEMENT: siblings drawn from what the ones before left of it.
        TOP_PLUS_SAMPLE: the most probable tokens and one drawn from the rest.
    """

    DETERMINISTIC = 0
    SHARED_NOISE = 1
    IID = 2
    WITHOUT_REPLACEMENT = 3
    TOP_PLUS_SAMPLE = 4


def _require(condition: bool, name: str, value: object, remedy: str) -> None:
    if not condition:
        raise InvalidRequestError(f"{name} is {value!r}; {remedy}.")


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def is_whole_number(value: object) -> bool:
    """Whether a value is an integer of Python or NumPy; a truth value is none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _are_ids(value: object) -> bool:
    return _is_list(value) and all(is_whole_number(token) and token >= 0 for token in value)


def _plain(value: object) -> object:
    """A scalar of NumPy as the Python number that it stands for; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's tokens are drawn and when a request ends.

    Attributes:
        temperature: 0 or more; below 1e-5 decoding is greedy and ties go to the lowest id.
        top_k: keep the k most probable tokens (ties at the cut stay in); 0 keeps all.
        top_p: keep the smallest set of tokens that holds this mass (ties at the cut stay in); in (0, 1].
        min_p: keep tokens with at least this share of the largest probability; in [0, 1].
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or output; above 0.
        presence_penalty: subtracted once from the logit of each token in the output; in [-2, 2].
        frequency_penalty: subtracted from a token's logit for each time it stands in the output; in [-2, 2].
        logit_bias: token id -> number added to its logit.
        bad_words: token id sequences that may not appear in the output.
        min_tokens: no stop token before this many output tokens.
        max_tokens: output tokens at most; None = up to the end of the context.
        stop_token_ids: tokens that end the output, beside the model's own.
        stop: strings that end the output; neither they nor what follows is part of the text.
        ignore_eos: go on past the model's own end-of-text tokens.
        seed: 64-bit seed; None draws one and reports it.
        n: independent outputs.
        logprobs: number of the target's most probable tokens reported at each position; None reports nothing.
        echo: begin the text with the prompt's.

    Raises:
        InvalidRequestError: a value is out of range or of the wrong type.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: Sequence[Sequence[int]] = ()
    min_tokens: int = 0
    max_tokens: int | None = None
    stop_token_ids: Sequence[int] = ()
    stop: Sequence[str] = ()
    ignore_eos: bool = False
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    echo: bool = False

    def __post_init__(self) -> None:
        """Refuse values that no request could mean."""
        for name in self.__slots__:
            object.__setattr__(self, name, _plain(getattr(self, name)))
        self._check_numbers()
        self._check_counts()
        self._check_lists()

    def _check_numbers(self) -> None:
        temperature = self.temperature
        _require(_is_number(temperature) and temperature >= 0, "temperature", temperature, "give a number of 0 or more")
        _require(
            _is_number(self.top_p) and 0 < self.top_p <= 1, "top_p", self.top_p, "give a number above 0, at most 1"
        )
        _require(_is_number(self.min_p) and 0 <= self.min_p <= 1, "min_p", self.min_p, "give a number from 0 to 1")
        penalty = self.repetition_penalty
        _require(_is_number(penalty) and penalty > 0, "repetition_penalty", penalty, "give a number above 0; 1 is off")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(_is_number(value) and -2 <= value <= 2, name, value, "give a number from -2 to 2")

    def _check_counts(self) -> None:
        _require(
            is_whole_number(self.top_k) and self.top_k >= 0,
            "top_k",
            self.top_k,
            "give a whole number; 0 keeps all tokens",
        )
        _require(is_whole_number(self.n) and self.n >= 1, "n", self.n, "give a whole number of 1 or more")
        _require(
            is_whole_number(self.min_tokens) and self.min_tokens >= 0, "min_tokens", self.min_tokens, "give 0 or more"
        )
        limit = self.max_tokens
        _require(
            limit is None or (is_whole_number(limit) and limit >= 1),
            "max_tokens",
            limit,
            "give 1 or more, or leave it out",
        )
        _require(
            limit is None or self.min_tokens <= limit,
            "min_tokens",
            self.min_tokens,
            f"give at most max_tokens, which is {limit}",
        )
        shown = self.logprobs
        _require(
            shown is None or (is_whole_number(shown) and 0 <= shown <= 20),
            "logprobs",
            shown,
            "give 0 to 20, or leave it out",
        )
        seed = self.seed
        _require(
            seed is None or (is_whole_number(seed) and abs(seed) < 2**63), "seed", seed, "give a 64-bit whole number"
        )

    def _check_lists(self) -> None:
        stop = self.stop
        _require(
            _is_list(stop) and all(isinstance(s, str) and s for s in stop),
            "stop",
            stop,
            "give a list of strings, none of them empty",
        )
        _require(_are_ids(self.stop_token_ids), "stop_token_ids", self.stop_token_ids, "give a list of token ids")
        words = self.bad_words
        _require(
            _is_list(words) and all(_are_ids(word) and len(word) > 0 for word in words),
            "bad_words",
            words,
            "give a list of token id lists, none of them empty",
        )
        bias = self.logit_bias
        _require(
            isinstance(bias, Mapping) and all(is_whole_number(i) and i >= 0 and _is_number(b) for i, b in bias.items()),
            "logit_bias",
            bias,
            "give a mapping from token ids to numbers",
        )

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature < GREEDY_TEMPERATURE


def _read_tree(tree: object) -> tuple[int, int] | None:
    """Width and nodes of a tree, from a pair of numbers or a text such as "3x16"."""
    if tree is None:
        return None
    parts: list[object] = list(tree) if isinstance(tree, list | tuple) else []
    if isinstance(tree, str):
        words = tree.lower().split("x")
        is_pair = all(word.strip().isdecimal() and len(word) < 10 for word in words)
        parts = [int(word) for word in words] if is_pair else []
    sizes = [int(part) for part in parts if isinstance(part, int | np.integer) and is_whole_number(part)]
    remedy = "give width x nodes with 1 <= width <= nodes, such as 3x16, or leave it out for a chain"
    _require(len(parts) == len(sizes) == 2 and 1 <= sizes[0] <= sizes[1], "tree", tree, remedy)
    return sizes[0], sizes[1]


@dataclass(frozen=True, slots=True)
class Speculation:
    """What a request may ask of speculation; the engine's own settings fill what is None.

    Attributes:
        rule: how proposals are judged.
        drafters: names of the drafters that may serve the request; None for all that the engine has.
        length: draft tokens a step at most (the depth of the tree).
        tree: (children of a node at most, nodes of a step at most), or a text such as "3x16"; None for a chain.
        draw: how a model drafter draws; None follows the rule.
        off: decode plainly.
        scope: whose shared drafter state the request reads and feeds: what a drafter keeps of finished texts is shown
            to requests of the same scope only.
    """

    rule: Rule = Rule.MATCH
    drafters: tuple[str, ...] | None = None
    length: int | None = None
    tree: tuple[int, int] | str | None = None
    draw: Draw | None = None
    off: bool = False
    scope: str = ""

    @property
    def shape(self) -> tuple[int, int] | None:
        """Width and nodes of a tree as numbers; None for a chain."""
        return None if self.tree is None or isinstance(self.tree, str) else self.tree

    def __post_init__(self) -> None:
        """Refuse values that no request could mean."""
        _require(isinstance(self.scope, str), "scope", self.scope, "give a text")
        _require(isinstance(self.rule, Rule), "rule", self.rule, f"choose one of {', '.join(r.value for r in Rule)}")
        length = self.length
        _require(
            length is None or (is_whole_number(length) and length >= 1),
            "length",
            length,
            "give 1 or more, or turn it off",
        )
        names = self.drafters
        _require(
            names is None or (isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)),
            "drafters",
            names,
            "give a list of names, or leave it out",
        )
        if names is not None:
            object.__setattr__(self, "drafters", tuple(names))
        object.__setattr__(self, "tree", _read_tree(self.tree))
        draws = ", ".join(draw.name for draw in Draw)
        _require(self.draw is None or isinstance(self.draw, Draw), "draw", self.draw, f"choose one of {draws}")
