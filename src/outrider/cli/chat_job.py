"""The options of one `outrider chat`, and everything that can be refused before anything is loaded.

This module knows words; it imports no tensor library. Invariant: a job that was checked talks either with a model of
its own or with a server, and has no option of the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from outrider.cli.serve_job import check_packages
from outrider.core.params import SamplingParams
from outrider.drafters.registry import check_drafter
from outrider.errors import InvalidRequestError
from outrider.models.loading.load import check_dtype, check_implementation
from outrider.models.loading.quantising import check_quantise
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
    loading: Mapping[str, Any]

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
        check_dtype(self.loading["dtype"])
        check_quantise(self.loading["quantize"])
        check_implementation(self.loading["implementation"])
        if self.endpoint is None:
            for text in self.drafters:
                check_drafter(text)
            build_policy(self.policy or "heuristic")
            return
        own = {"--drafter": self.drafters, "--policy": self.policy, "--threads": self.loading["threads"]}
        own |= {f"--{name}": self.loading[name] != "auto" for name in ("dtype", "device", "implementation")}
        own["--quantize"] = self.loading["quantize"] != "none"
        for option, given in own.items():
            if given:
                raise InvalidRequestError(f"{option} is the server's to choose; leave it or --endpoint out.")
        if urlsplit(self.endpoint).scheme not in ("http", "https"):
            raise InvalidRequestError(
                f"--endpoint is {self.endpoint!r}; give an address such as http://127.0.0.1:8000."
            )
        check_packages("chat --endpoint", ("openai",))
