"""Errors that a user should see: one typed tree, one sentence each.

Every message names the parameter or file, the value that was given and the remedy. Programming mistakes raise the usual
built-in exceptions instead; nothing here is raised for them.

```
OutriderError
├── InvalidRequestError        a request that cannot be served as asked (HTTP 400)
│   ├── PromptTooLongError     the prompt does not fit the context
│   └── UnsupportedError       a known feature in a combination that is not supported
├── ModelError                 a model that cannot be used
│   ├── ModelNotFoundError     no such file, folder, hub name or built-in model
│   ├── DamagedModelError      truncated, corrupt or unsafe files
│   └── UnsupportedModelError  a family or feature that the decoder does not know
├── DownloadError              no network, no disk space, wrong hash
├── EndpointError              a server that is being measured is down or answers nonsense
├── MemoryBudgetError          weights, caches and working space do not fit the memory that they may take
├── CacheFullError             no room for more rows in the key-value cache
├── BusyError                  too many requests wait or run already (HTTP 429)
├── StoppedError               the engine is stopping or has stopped (HTTP 503)
└── GenerationError            a running request failed (NaN logits, every token banned)
```
"""

__all__ = [
    "BusyError",
    "CacheFullError",
    "DamagedModelError",
    "DownloadError",
    "EndpointError",
    "GenerationError",
    "InvalidRequestError",
    "MemoryBudgetError",
    "ModelError",
    "ModelNotFoundError",
    "OutriderError",
    "PromptTooLongError",
    "StoppedError",
    "UnsupportedError",
    "UnsupportedModelError",
]


class OutriderError(Exception):
    """Anything outrider tells its user in one sentence."""


class InvalidRequestError(OutriderError):
    """A request that cannot be served as asked."""


class PromptTooLongError(InvalidRequestError):
    """The prompt does not fit the model's context."""


class UnsupportedError(InvalidRequestError):
    """A combination of known features that is refused by name."""


class ModelError(OutriderError):
    """A model that cannot be used."""


class ModelNotFoundError(ModelError):
    """Neither a file, a folder, a hub name nor a built-in model."""


class DamagedModelError(ModelError):
    """A checkpoint whose weights or metadata are truncated, corrupt or in an unsafe format."""


class UnsupportedModelError(ModelError):
    """A model family or feature that the decoder does not know."""


class DownloadError(OutriderError):
    """A download that could not be finished; nothing is left half-written."""


class EndpointError(OutriderError):
    """A server that is being measured does not answer, or answers nonsense."""


class MemoryBudgetError(OutriderError):
    """An engine that cannot start, because its parts do not fit the memory that they may take."""


class CacheFullError(OutriderError):
    """The key-value cache has no room for the rows that were asked for."""


class BusyError(OutriderError):
    """Too many requests wait or run already."""


class StoppedError(OutriderError):
    """The engine is stopping or has stopped."""


class GenerationError(OutriderError):
    """A running request that had to be stopped; tokens emitted before stay valid.

    Attributes:
        results: what was generated for all requests of the call, the failed ones included.
    """

    def __init__(self, message: str, results: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.results = results
