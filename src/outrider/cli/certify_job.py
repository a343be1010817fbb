"""The options of one `outrider certify`, and everything that can be refused before anything is loaded.

This module knows words and their meaning; it imports no tensor library. Invariant: a job that was checked names
prompts, a rule, drafters and settings that exist and go together; nothing that was given is ignored.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.cli.speculating import read_speculation
from outrider.core.params import SamplingParams, Speculation
from outrider.drafters.registry import check_drafter
from outrider.errors import InvalidRequestError
from outrider.models.loading.load import check_dtype, check_implementation
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
    dtype: str
    device: str
    implementation: str
    threads: int | None

    def check(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            InvalidRequestError: a value does not exist, is out of range or does not go with another.
        """
        SamplingParams(**self.sampling)
        self.speculation()
        self.draft_models()
        build_policy(self.policy)
        check_dtype(self.dtype)
        check_implementation(self.implementation)
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

    def draft_models(self) -> list[str]:
        """Names of the models that the drafters load; all options of the drafters are checked."""
        found = [check_drafter(text) for text in self.drafters]
        for entry, options in found:
            if entry.name in ("none", "prediction"):
                raise InvalidRequestError(
                    f"--drafter {entry.name} drafts nothing here, so there would be nothing to certify; choose another."
                )
            check_dtype(options.get("dtype", "auto"))
            check_implementation(options.get("implementation", "auto"))
        return [options["model"] for _, options in found if "model" in options]
