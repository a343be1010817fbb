"""The drafters that exist, by name: `ngram:max=4,min=1`, `draft_model:model=smollm2,min_confidence=0.3`, `none`.

This module knows how drafters are written and built, not how they draft. Importing it reads no model code; a drafter's
own module is imported when it is built. Invariant: every option that is listed is passed on, and every option that is
not listed is refused (options that were accepted and dropped are a known trap: ml-explore/mlx-lm#1297).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.core.options import Option, choose, parse_spec, read_options
from outrider.drafters.base import Drafter
from outrider.errors import InvalidRequestError

if TYPE_CHECKING:
    from outrider.drafters.pairing import Loaded

__all__ = ["DrafterEntry", "build_drafter", "check_drafter", "list_drafters", "split_drafters"]


@dataclass(frozen=True, slots=True)
class DrafterEntry:
    """A drafter as help texts and documentation list it.

    Attributes:
        name: how it is asked for.
        help: one line for people.
        options: its settings.
        build: makes it from checked options, the loaded target and whether downloads are shown.
        needs_target: whether it can only be built for a loaded target.
    """

    name: str
    help: str
    options: tuple[Option, ...]
    build: "Callable[[Mapping[str, Any], Loaded | None, bool], Drafter]"
    needs_target: bool = False


def _build_none(_options: Mapping[str, Any], _target: "Loaded | None", _progress: bool) -> Drafter:
    from outrider.drafters.none import NoDrafter

    return NoDrafter()


def _build_ngram(options: Mapping[str, Any], _target: "Loaded | None", _progress: bool) -> Drafter:
    from outrider.drafters.ngram import NgramDrafter

    return NgramDrafter(options["max"], options["min"], earliest=options["earliest"])


def _build_suffix(options: Mapping[str, Any], _target: "Loaded | None", _progress: bool) -> Drafter:
    from outrider.drafters.suffix import SuffixDrafter

    return SuffixDrafter(options["max"], options["min"], shared=options["shared"])


def _build_prediction(_options: Mapping[str, Any], _target: "Loaded | None", _progress: bool) -> Drafter:
    from outrider.drafters.prediction import PredictionDrafter

    return PredictionDrafter()


def _build_recycling(options: Mapping[str, Any], _target: "Loaded | None", _progress: bool) -> Drafter:
    from outrider.drafters.recycling import RecyclingDrafter

    return RecyclingDrafter(options["ranks"], options["entries"], shared=options["shared"])


def _build_draft_model(options: Mapping[str, Any], target: "Loaded | None", progress: bool) -> Drafter:
    from outrider.drafters.pairing import build_draft_model
    from outrider.drafters.vocabulary import read_vocabulary
    from outrider.models.loading import load_model

    if target is None:
        raise InvalidRequestError("drafter draft_model needs a loaded target; choose another drafter.")
    vocabulary = options["vocabulary"]
    loaded = load_model(
        options["model"],
        dtype=options["dtype"],
        device=options["device"],
        implementation=options["implementation"],
        quantize=options["quantize"],
        head_ids=None if vocabulary is None else read_vocabulary(Path(vocabulary), target.tokenizer),
        progress=progress,
    )
    return build_draft_model(
        loaded,
        target,
        min_confidence=options["min_confidence"],
        chunk=options["chunk"],
        max_tokens=options["cache_tokens"],
    )


_ENTRIES = {
    entry.name: entry
    for entry in (
        DrafterEntry(
            name="none",
            help="plain decoding",
            options=(),
            build=_build_none,
        ),
        DrafterEntry(
            name="ngram",
            help="copies what followed the last few tokens earlier in the text",
            options=(
                Option("max", int, "longest match that is looked for", default=4, minimum=1, maximum=32),
                Option("min", int, "shortest match that is good enough", default=1, minimum=1, maximum=32),
                Option("earliest", bool, "copy from the first occurrence instead of the most recent", default=False),
            ),
            build=_build_ngram,
        ),
        DrafterEntry(
            name="suffix",
            help="what followed all earlier occurrences of the text's end, weighed by how much of it they share",
            options=(
                Option("max", int, "matches are measured up to this length", default=32, minimum=1, maximum=64),
                Option("min", int, "shorter matches have no vote", default=1, minimum=1, maximum=64),
                Option(
                    "shared",
                    int,
                    "tokens of finished outputs kept for later requests of the same scope; 0 keeps none",
                    default=0,
                    minimum=0,
                ),
            ),
            build=_build_suffix,
        ),
        DrafterEntry(
            name="prediction",
            help="follows the text that the caller expects",
            options=(),
            build=_build_prediction,
        ),
        DrafterEntry(
            name="recycling",
            help="the target's own runner-ups of earlier passes",
            options=(
                Option("ranks", int, "runner-ups kept for each token", default=8, minimum=1, maximum=32),
                Option("entries", int, "tokens that a table knows", default=16_384, minimum=1),
                Option("shared", bool, "one table for all requests of a scope instead of one each", default=False),
            ),
            build=_build_recycling,
        ),
        DrafterEntry(
            name="draft_model",
            help="a smaller model of the same vocabulary",
            options=(
                Option("model", str, "folder, .gguf file, built-in or hub name", required=True),
                Option(
                    "min_confidence",
                    float,
                    "draw nothing after a path less probable than this",
                    default=0.0,
                    minimum=0,
                    maximum=1,
                ),
                Option("chunk", int, "prompt tokens that a step reads at most", default=512, minimum=2),
                Option("cache_tokens", int, "rows of its cache over all requests; no bound if left out", minimum=1),
                Option("dtype", str, "type of its weights in memory", default="auto"),
                Option("device", str, "where it runs", default="auto"),
                Option("implementation", str, "auto, decoder or transformers", default="auto"),
                Option("quantize", str, "none, auto, int8 or int4: cuts its float weights on a CPU", default="none"),
                Option("vocabulary", str, "file of the tokens that it may propose; all if left out"),
            ),
            build=_build_draft_model,
            needs_target=True,
        ),
    )
}


def list_drafters() -> tuple[DrafterEntry, ...]:
    """All drafters, by name."""
    return tuple(_ENTRIES[name] for name in sorted(_ENTRIES))


def split_drafters(text: str) -> tuple[str, ...]:
    """Drafters that work together, written with a + before each further name: "prediction+ngram:max=4".

    A + elsewhere, as in the path of a model, stays where it is.
    """
    names = "|".join(entry.name for entry in list_drafters())
    return tuple(part.strip() for part in re.split(rf"\+(?=\s*(?:{names})\s*(?:[:+]|$))", text))


def check_drafter(text: str) -> tuple[DrafterEntry, dict[str, Any]]:
    """Read a drafter's text without building it.

    Args:
        text: such as `ngram:max=4,min=2`.

    Returns:
        The entry and a value for each of its options.

    Raises:
        InvalidRequestError: the name or an option does not exist, or a value does not fit.
    """
    name, given = parse_spec(text)
    entry = choose("drafter", name, _ENTRIES)
    return entry, read_options(f"drafter {name}", given, entry.options)


def build_drafter(text: str, target: "Loaded | None" = None, *, progress: bool = True) -> Drafter:
    """Make a drafter from its text; models are loaded here.

    Args:
        text: such as `ngram:max=4,min=2`.
        target: the loaded target that it drafts for; drafters that hold no model do without.
        progress: show downloads on standard error.

    Raises:
        InvalidRequestError: the name or an option does not exist, or a value does not fit.
        UnsupportedError: the drafter and the target do not go together.
        ModelError: the drafter's model cannot be used.
        DownloadError: the drafter's model could not be downloaded.
    """
    entry, options = check_drafter(text)
    return entry.build(options, target, progress)
