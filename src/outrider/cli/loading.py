"""How a model is loaded: the options that every command with a model has, what they may be, and the loading itself.

This module imports no tensor library before it loads. Invariant: what was refused here was refused before anything was
fetched.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from outrider.cli.console import note
from outrider.cli.options import starting
from outrider.cli.speculating import check_drafters
from outrider.models.loading.load import check_dtype, check_implementation
from outrider.models.loading.quantising import check_quantise

if TYPE_CHECKING:
    from outrider.models.loading import LoadedModel

__all__ = ["Loading", "load"]


@dataclass(frozen=True, slots=True)
class Loading:
    """The options, as they were given; the defaults are those of the command line."""

    dtype: str = "auto"
    quantize: str = "none"
    device: str = "auto"
    implementation: str = "auto"
    threads: int | None = None

    def check(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            InvalidRequestError: a value does not exist.
        """
        check_dtype(self.dtype)
        check_quantise(self.quantize)
        check_implementation(self.implementation)

    def given(self) -> list[str]:
        """The options that were not left at their defaults, as they are written."""
        return [f"--{option.name}" for option in fields(self) if getattr(self, option.name) != option.default]


def load(name: str, loading: Loading, drafters: Sequence[str] = ()) -> "LoadedModel":
    """Load a model, with a bar while it is downloaded and a spinner while it is read.

    Args:
        name: the model.
        loading: how.
        drafters: drafters as they are written; the models that they need are downloaded first.

    Raises:
        OutriderError: the model, its dtype, its device or its implementation cannot be used.
    """
    loading.check()
    draft_models = check_drafters(drafters)
    with starting():
        import torch

        from outrider.models.loading import load_model, pull_model

    values = asdict(loading)
    if (threads := values.pop("threads")) is not None:
        torch.set_num_threads(threads)
    for wanted in (*draft_models, name):
        pull_model(wanted, progress=sys.stderr.isatty())
    with starting(f"loading {name}"):
        loaded = load_model(name, **values, progress=False)
    if loaded.loss is not None:
        note(f"{name}, {loaded.loss}")
    elif loading.quantize != "none":
        note(f"{name} stays in bfloat16: fewer bits would lose too much")
    return loaded
