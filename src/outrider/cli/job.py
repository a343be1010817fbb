"""The options of one `outrider generate`, and everything that can be refused before anything is loaded.

This module knows words and their meaning; it imports no tensor library. Invariant: a job that was checked names a rule,
drafters, a policy and sampling settings that exist and go together.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.cli.loading import Loading
from outrider.cli.speculating import check_drafters, read_speculation
from outrider.core.params import SamplingParams, Speculation
from outrider.drafters.registry import check_drafter
from outrider.engine.config import EngineConfig
from outrider.errors import InvalidRequestError
from outrider.policies.registry import build_policy

__all__ = ["Job"]


@dataclass(frozen=True, slots=True)
class Job:
    """The options of one call, as they were given; in `sampling` only those that were."""

    prompt: str
    model: str
    system: str | None
    raw: bool
    sampling: dict[str, Any]
    drafters: tuple[str, ...]
    policy: str
    length: int | None
    tree: str | None
    rule: str
    compare: bool
    show_draft: bool
    stats: bool
    as_json: bool
    loading: Loading
    prediction: str | None = None
    prompts: Path | None = None
    at_once: int = 16
    memory: str | None = None

    def config(self) -> EngineConfig:
        """The engine's limits."""
        return EngineConfig(max_running=self.at_once, memory=self.memory)

    def check(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            InvalidRequestError: a value does not exist, is out of range or does not go with another.
        """
        SamplingParams(**self.sampling)
        self.speculation()
        check_drafters(self.drafters)
        self.config()
        self._check_many()
        self.loading.check()
        build_policy(self.policy)
        if self.raw and self.system is not None:
            raise InvalidRequestError("--system needs the chat template that --raw leaves out; give one of them.")
        if "logprobs" in self.sampling and not self.as_json:
            raise InvalidRequestError("--logprobs has no place in plain text; add --json, or leave it out.")
        if self.sampling.get("n", 1) > 1:
            for option, is_given in (("--compare", self.compare), ("--show-draft", self.show_draft)):
                if is_given:
                    raise InvalidRequestError(
                        f"{option} shows one text, but --n is {self.sampling['n']}; leave one out."
                    )
        if self.prediction is not None and not any(
            check_drafter(text)[0].name == "prediction" for text in self.drafters
        ):
            raise InvalidRequestError("--prediction is given, but no drafter follows it; add --drafter prediction.")
        if self.as_json and self.show_draft:
            raise InvalidRequestError(
                "--show-draft has no place in --json, which tells who wrote each token; give one of them."
            )

    def _check_many(self) -> None:
        """Refuse what shows one text where there are many prompts."""
        options = {
            "--compare": self.compare,
            "--show-draft": self.show_draft,
            "--stats": self.stats,
            "--prediction": self.prediction is not None,
        }
        for option, is_given in options.items():
            if is_given and self.prompts is not None:
                raise InvalidRequestError(f"{option} is for one prompt, but --prompts gives many; leave one out.")

    def speculation(self) -> Speculation:
        """How the request may be speculated on."""
        return read_speculation(self.rule, self.length, self.tree)
