"""The public surface is small, pinned, and light to import."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import outrider

NAMES = [
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
HEAVY = ("torch", "transformers", "tokenizers", "huggingface_hub", "safetensors", "gguf")


def modules_after(statement: str) -> set[str]:
    """Modules that a fresh interpreter has loaded after a statement."""
    script = f"{statement}; import sys; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_the_public_names_are_these() -> None:
    assert outrider.__all__ == NAMES == sorted(NAMES)
    assert dir(outrider) == sorted(["__version__", *NAMES])


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(outrider, name)
    assert value.__doc__
    assert getattr(outrider, name) is value
    if hasattr(value, "__module__"):
        assert value.__module__.startswith("outrider.")
        assert value.__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Beam'"):
        _ = outrider.Beam


def test_the_version_is_the_project_s() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert outrider.__version__ == project["version"]


def test_importing_the_package_imports_nothing_else_of_it() -> None:
    modules = modules_after("import outrider; dir(outrider)")
    assert {name for name in modules if name.startswith("outrider")} == {"outrider"}
    assert "numpy" not in modules


@pytest.mark.parametrize(
    "statement",
    [
        "import outrider.core, outrider.analysis, outrider.policies",
        "import outrider.core.verify, outrider.core.coins, outrider.core.process, outrider.core.tree",
        "import outrider.policies.registry, outrider.drafters.registry",
        "import outrider; outrider.SamplingParams(), outrider.Speculation(), outrider.Plan(), outrider.Policy",
        "import outrider.models, outrider.cache, outrider.engine, outrider.drafters, outrider.cli",
    ],
)
def test_what_needs_no_tensors_imports_no_tensor_library(statement: str) -> None:
    assert not modules_after(statement) & set(HEAVY)
