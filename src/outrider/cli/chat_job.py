"""The options of one `outrider chat`, and everything that can be refused before anything is loaded.

This module knows words; it imports no tensor library. Invariant: a job that was checked talks either with a model of
its own or with a server, and has no option of the other.
"""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from outrider.cli.loading import Loading
from outrider.cli.serve_job import check_packages
from outrider.cli.speculating import check_drafters
from outrider.core.params import SamplingParams
from outrider.errors import InvalidRequestError
from outrider.policies.registry import build_policy

__all__ = ["ChatJob"]


@dataclass(frozen=True, slots=True)
class ChatJob:
    """The options of one call, as they were given."""

    model: str | None
    endpoint: str | None
    system: str | None
    max_tokens: int
    temperature: float | None
    seed: int | None
    drafters: tuple[str, ...]
    policy: str | None
    loading: Loading

    @property
    def sampling(self) -> dict[str, Any]:
        """What was said of sampling."""
        values = {"max_tokens": self.max_tokens, "temperature": self.temperature, "seed": self.seed}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def base_url(self) -> str:
        """Address of the server's interface; `/v1` is added where it has no path."""
        url = (self.endpoint or "").rstrip("/")
        return url if urlsplit(url).path else f"{url}/v1"

    def check(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            OutriderError: a value does not exist or does not go with another, or a package is missing.
        """
        SamplingParams(**self.sampling)
        self.loading.check()
        if self.endpoint is None:
            check_drafters(self.drafters)
            build_policy(self.policy or "heuristic")
            return
        own = {"--drafter": self.drafters, "--policy": self.policy}
        if given := [option for option, value in own.items() if value] + self.loading.given():
            raise InvalidRequestError(f"{given[0]} is the server's to choose; leave it or --endpoint out.")
        if urlsplit(self.endpoint).scheme not in ("http", "https"):
            raise InvalidRequestError(
                f"--endpoint is {self.endpoint!r}; give an address such as http://127.0.0.1:8000."
            )
        check_packages("chat --endpoint", ("openai",))
