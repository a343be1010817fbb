"""Exact speculative decoding for PyTorch: faster text, the target model's own law.

```python
import outrider

engine = outrider.build_engine("smollm2", drafters=["ngram"])
print(outrider.generate(engine, "Why is the sky blue?")[0].text)
```

This module only names the public parts; each is imported when it is first used. Invariant: importing it imports no
other module of the package and no tensor library.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider import analysis, errors
    from outrider.core.params import Draw, Rule, SamplingParams, Speculation
    from outrider.core.types import Kept, Outcome, Plan, Proposal, Provenance, TokenEvent, TokenLogprobs
    from outrider.drafters.base import DraftContext, Drafter, Needs, Observation
    from outrider.engine.config import EngineConfig
    from outrider.engine.engine import Engine
    from outrider.engine.generate import Generation, build_engine, generate
    from outrider.engine.outbox import TextEvent
    from outrider.engine.request import Request
    from outrider.engine.stats import SpecStats
    from outrider.models.base import Target
    from outrider.models.loading import LoadedModel, load_model
    from outrider.policies.base import Policy, RequestView, Shape

__all__ = [
    "DraftContext",
    "Drafter",
    "Draw",
    "Engine",
    "EngineConfig",
    "Generation",
    "Kept",
    "LoadedModel",
    "Needs",
    "Observation",
    "Outcome",
    "Plan",
    "Policy",
    "Proposal",
    "Provenance",
    "Request",
    "RequestView",
    "Rule",
    "SamplingParams",
    "Shape",
    "SpecStats",
    "Speculation",
    "Target",
    "TextEvent",
    "TokenEvent",
    "TokenLogprobs",
    "analysis",
    "build_engine",
    "errors",
    "generate",
    "load_model",
]
__version__ = "0.1.0"

_HOMES = {
    "core.params": ("Draw", "Rule", "SamplingParams", "Speculation"),
    "core.types": ("Kept", "Outcome", "Plan", "Proposal", "Provenance", "TokenEvent", "TokenLogprobs"),
    "drafters.base": ("DraftContext", "Drafter", "Needs", "Observation"),
    "engine.config": ("EngineConfig",),
    "engine.engine": ("Engine",),
    "engine.generate": ("Generation", "build_engine", "generate"),
    "engine.outbox": ("TextEvent",),
    "engine.request": ("Request",),
    "engine.stats": ("SpecStats",),
    "models.base": ("Target",),
    "models.loading": ("LoadedModel", "load_model"),
    "policies.base": ("Policy", "RequestView", "Shape"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public part when it is first used."""
    if name in ("analysis", "errors"):
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return sorted([*__all__, "__version__"])
