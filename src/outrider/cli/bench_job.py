"""The options of one `outrider bench`, and everything that can be refused before anything is loaded.

This module knows words and their meaning; it imports no tensor library. Invariant: a job that was checked names
prompts, drafters, a policy and settings that exist and go together; nothing that was given is ignored.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from outrider.bench.arms import Arm, plan_arms
from outrider.cli.loading import Loading
from outrider.cli.speculating import check_drafters, read_speculation
from outrider.core.params import Rule, SamplingParams, Speculation
from outrider.errors import InvalidRequestError, UnsupportedError

if TYPE_CHECKING:
    from outrider.workloads import PromptItem

__all__ = ["BenchJob", "check_extras"]

Number = TypeVar("Number", int, float)

_EXTRAS = {
    "--html": {"altair": "altair", "vl_convert": "vl-convert-python"},
    "--endpoint": {"openai": "openai", "httpx": "httpx", "prometheus_client": "prometheus-client"},
}
_MODEL_ONLY = ("drafters", "length", "tree", "policy", "rule", "use_prediction", "ignore_eos", "concurrency")
_SERVER_ONLY = ("endpoint_off", "on_body", "off_body")


@dataclass(frozen=True, slots=True)
class BenchJob:
    """The options of one call, as they were given."""

    prompts: tuple[Path, ...]
    limit: int | None
    per_task: int | None
    task: str | None
    model: str | None
    drafters: tuple[str, ...]
    length: str | None
    tree: str | None
    policy: str | None
    rule: str | None
    use_prediction: bool
    temperature: str
    max_tokens: int
    seed: int
    ignore_eos: bool
    raw: bool
    concurrency: str | None
    endpoint: str | None
    endpoint_off: str | None
    on_body: str | None
    off_body: str | None
    out: Path
    loading: Loading

    def check(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            InvalidRequestError: a value does not exist, is out of range or does not go with another.
        """
        if not self.prompts:
            raise InvalidRequestError("--prompts is missing; give a file of prompts.")
        for temperature in self.temperatures():
            SamplingParams(temperature=temperature, max_tokens=self.max_tokens, seed=self.seed)
        self.loading.check()
        self._check_side()
        self.speculation_rule()
        arms = self.arms()
        check_drafters(self.drafters_of_arms())
        self.levels()
        for name in ("on_body", "off_body"):
            self.body(name)
        items = self.items()
        if self.endpoint is None:
            self._check_predictions(arms, [item for _, item in items])

    def temperatures(self) -> list[float]:
        """The temperatures, each once."""
        return _numbers("temperature", self.temperature, float, lambda value: value >= 0 and math.isfinite(value))

    def levels(self) -> list[int]:
        """The concurrencies, each once; none where they were not asked for."""
        return [] if self.concurrency is None else _numbers("concurrency", self.concurrency, int, lambda n: n >= 1)

    def arms(self) -> list[Arm]:
        """What is compared with plain decoding."""
        lengths = [] if self.length is None else _numbers("length", self.length, int, lambda n: n >= 1)
        for length in lengths:
            Speculation(length=length)
        return plan_arms(self.drafters or ("ngram",), lengths, self.policy, self.trees())

    def trees(self) -> list[str]:
        """Bounds of the trees, each once; none for chains."""
        trees = [] if self.tree is None else list(dict.fromkeys(self.tree.split(",")))
        for tree in trees:
            read_speculation(self.speculation_rule().value, None, tree)
        return trees

    def drafters_of_arms(self) -> list[str]:
        """All drafters that are measured, alone or with others."""
        return [text for arm in self.arms() for text in arm.drafters]

    def speculation_rule(self) -> Rule:
        """How drafts are judged."""
        rules = {rule.value: rule for rule in Rule if rule.is_exact}  # an approximate text is no fair comparison
        if self.rule is not None and self.rule not in rules:
            raise InvalidRequestError(f"--rule is {self.rule!r}; choose one of {', '.join(rules)}.")
        return Rule.MATCH if self.rule is None else rules[self.rule]

    def body(self, name: str) -> dict[str, Any]:
        """Further fields of a side's requests."""
        text: str | None = getattr(self, name)
        if text is None:
            return {}
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise InvalidRequestError(
                f'{_option(name)} is {text!r}; give a JSON object, as in \'{{"speculation": {{"off": true}}}}\'.'
            )
        return value

    def items(self) -> "list[tuple[str, PromptItem]]":
        """Names and prompts of all files; predictions only where they were asked for.

        Raises:
            InvalidRequestError: a file is not understood, or given twice.
        """
        from outrider.workloads import read_prompts

        files = [path.resolve() for path in self.prompts]
        if len(set(files)) < len(files):
            raise InvalidRequestError(f"--prompts names {', '.join(map(str, self.prompts))}; give each file once.")
        have_names = len({path.name for path in files}) == len(files)
        found: list[tuple[str, PromptItem]] = []
        for path in self.prompts:
            workload = read_prompts(
                path,
                task=self.task,
                limit=self.limit,
                per_task=self.per_task,
                predict_input=self.use_prediction,
            )
            prefix = f"{path.name if have_names else path}:" if len(files) > 1 else ""
            found += [(f"{prefix}{item.id}", self._asked(item)) for item in workload]
        return found

    def _asked(self, item: "PromptItem") -> "PromptItem":
        return item if self.use_prediction else replace(item, prediction=None)

    def _check_side(self) -> None:
        """Options of models do nothing for a server, and the other way round."""
        if self.endpoint is None:
            given = [name for name in _SERVER_ONLY if getattr(self, name) is not None]
            if given:
                raise InvalidRequestError(f"{_option(given[0])} is for servers; give --endpoint too or leave it out.")
            return
        given = [_option(name) for name in _MODEL_ONLY if getattr(self, name)] + self.loading.given()
        if given:
            raise UnsupportedError(f"{given[0]} cannot be set for a server (--endpoint); leave it out.")
        if self.endpoint_off is None and self.off_body is None:
            raise InvalidRequestError(
                f"--endpoint {self.endpoint} has no side without speculation; give --endpoint-off, the address of a "
                "server without it, or --off-body, the fields that turn it off."
            )
        for name in ("endpoint", "endpoint_off"):
            address: str | None = getattr(self, name)
            if address is not None and not address.startswith(("http://", "https://")):
                raise InvalidRequestError(f"{_option(name)} is {address!r}; give an address with http:// or https://.")

    def _check_predictions(self, arms: list[Arm], items: "list[PromptItem]") -> None:
        has_any = any(item.prediction is not None for item in items)
        follows = any(arm.predicts for arm in arms)
        if self.use_prediction and not follows:
            raise InvalidRequestError("--use-prediction has no drafter that follows it; add --drafter prediction.")
        if follows and not has_any:
            raise InvalidRequestError(
                "--drafter prediction has no prediction to follow; add --use-prediction and prompts that have one."
            )


def check_extras(*, html: bool, endpoint: bool) -> None:
    """Refuse what the installed packages cannot do.

    Raises:
        UnsupportedError: an extra is missing.
    """
    for option, wanted in (("--html", html), ("--endpoint", endpoint)):
        missing = [package for name, package in _EXTRAS[option].items() if wanted and find_spec(name) is None]
        if missing:
            raise UnsupportedError(f'{option} needs {", ".join(missing)}; run: pip install "outrider[bench]".')


def _numbers(name: str, text: str, kind: Callable[[str], Number], fits: Callable[[Number], bool]) -> list[Number]:
    """Numbers with commas between them, each once."""
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(fits(number) for number in numbers):
        words = "whole numbers of 1 or more" if kind is int else "numbers of 0 or more"
        raise InvalidRequestError(f"--{name} is {text!r}; give {words}, separated by commas.")
    return list(dict.fromkeys(numbers))


def _option(name: str) -> str:
    return f"--{name.removesuffix('s') if name == 'drafters' else name.replace('_', '-')}"
