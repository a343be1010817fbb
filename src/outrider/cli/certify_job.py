"""The options of one `outrider certify`, and everything that can be refused before anything is loaded.

This module knows words and their meaning; it imports no tensor library. Invariant: a job that was checked names
prompts, a rule, drafters and settings that exist and go together; nothing that was given is ignored.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.cli.loading import Loading
from outrider.cli.speculating import check_drafters, read_speculation
from outrider.core.params import SamplingParams, Speculation
from outrider.drafters.registry import check_drafter
from outrider.errors import InvalidRequestError
from outrider.policies.registry import build_policy

if TYPE_CHECKING:
    from outrider.workloads import Workload

__all__ = ["CertifyJob"]


@dataclass(frozen=True, slots=True)
class CertifyJob:
    """The options of one call, as they were given; in `sampling` only those that were."""

    prompts: Path | None
    model: str
    drafters: tuple[str, ...]
    rule: str
    policy: str
    length: int | None
    tree: str | None
    sampling: dict[str, Any]
    limit: int
    samples: int
    prefixes: int
    power: float
    raw: bool
    out: Path
    loading: Loading

    def check(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            InvalidRequestError: a value does not exist, is out of range or does not go with another.
        """
        SamplingParams(**self.sampling)
        self.speculation()
        self._check_drafters()
        build_policy(self.policy)
        self.loading.check()
        for name, value, least in (("samples", self.samples, 100), ("prefixes", self.prefixes, 1)):
            if value < least:
                raise InvalidRequestError(f"--{name} is {value}; give {least} or more.")
        if not 0.5 <= self.power < 1:
            raise InvalidRequestError(f"--power is {self.power}; give a number from 0.5 to below 1.")
        self.workload()

    def workload(self) -> "Workload":
        """The prompts.

        Raises:
            InvalidRequestError: none were given, or the file is not understood.
        """
        from outrider.workloads import read_prompts

        if self.prompts is None:
            raise InvalidRequestError("--prompts is missing; give a file of prompts.")
        return read_prompts(self.prompts, limit=self.limit)

    def speculation(self) -> Speculation:
        """How texts are speculated on."""
        return read_speculation(self.rule, self.length, self.tree)

    def _check_drafters(self) -> None:
        """Refuse drafters that do not exist, and those that would have nothing to draft from."""
        check_drafters(self.drafters)
        for text in self.drafters:
            name = check_drafter(text)[0].name
            if name in ("none", "prediction"):
                raise InvalidRequestError(
                    f"--drafter {name} drafts nothing here, so there would be nothing to certify; choose another."
                )
