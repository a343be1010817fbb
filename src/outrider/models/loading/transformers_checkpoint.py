"""Open a folder or a GGUF file for transformers, or say by name why not.

This module knows what the library can load and what of it we take: causal text models whose weights are safetensors or
GGUF and whose code is the library's own. It reads no weights before it is asked for the target. Invariants: pickles
are never opened, no code of a checkpoint is ever run, and a model whose weights are incomplete is refused.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.errors import DamagedModelError, UnsupportedError, UnsupportedModelError
from outrider.models.config import ModelNumbers
from outrider.models.files import read_json
from outrider.models.loading.defaults import GenerationDefaults, defaults_from_folder, defaults_from_gguf
from outrider.models.loading.folder import refuse_other_folders, tokenizer_eos
from outrider.models.loading.gguf_checkpoint import open_gguf
from outrider.models.loading.gguf_header import open_gguf_file
from outrider.models.loading.safetensors_source import SafetensorsSource

if TYPE_CHECKING:
    import torch

    from outrider.models.tokenizer import Tokenizer
    from outrider.models.transformers_target import TransformersTarget

__all__ = ["TransformersCheckpoint", "open_transformers_folder", "open_transformers_gguf"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TransformersCheckpoint:
    """What a folder or GGUF file gives before transformers reads its weights.

    Attributes:
        path: the folder or file.
        config: the numbers that people ask for.
        defaults: sampling defaults and end-of-text tokens.
        disk_bytes: size of the weight files.
        num_parameters: number of weights as stored.
        quantisation: type that holds most of them.
        load_tokenizer: builds the tokenizer.
        library_config: the library's configuration object.
    """

    path: Path
    config: ModelNumbers
    defaults: GenerationDefaults
    disk_bytes: int
    num_parameters: int
    quantisation: str
    load_tokenizer: "Callable[[], Tokenizer]"
    library_config: Any

    def load_target(
        self,
        dtype: "torch.dtype",
        device: "torch.device",
        *,
        stored_blocks: bool,  # noqa: ARG002  (the library expands them always)
        head_ids: Sequence[int] | None = None,
    ) -> "TransformersTarget":
        """Read the weights and make the target.

        Raises:
            UnsupportedError: `head_ids` is given: the library multiplies by the whole head.
            DamagedModelError: weights are missing or have another shape than the configuration says.
            UnsupportedModelError: no way of running the model agrees with the model's own pass.
        """
        if head_ids is not None:
            raise UnsupportedError(
                f"a vocabulary (head_ids) is given, but transformers runs {self.path.name} and multiplies by its whole "
                "head; leave it out."
            )
        from outrider.models.transformers_target import transformers_target

        with _quiet():
            model = _load_model(self.path, self.library_config, dtype).to(device)
            return transformers_target(model)


def open_transformers_folder(folder: Path) -> TransformersCheckpoint:
    """Open a model folder for transformers.

    Raises:
        UnsupportedModelError: no causal text model, code of its own, or quantised weights without their libraries.
        DamagedModelError: files that are missing, truncated or unsafe.
    """
    from outrider.models.tokenizer.folder import tokenizer_from_folder

    refuse_other_folders(folder)
    values, where = read_json(folder / "config.json"), str(folder / "config.json")
    _refuse_other_models(values, where)
    config = _library_config(folder, where)
    _refuse_missing_libraries(config, where)
    source = SafetensorsSource(folder, floating_only=getattr(config, "quantization_config", None) is None)
    generation = read_json(folder / "generation_config.json")
    return TransformersCheckpoint(
        path=folder,
        config=_numbers(config),
        defaults=defaults_from_folder(values, generation, tokenizer_eos(folder), folder),
        disk_bytes=source.disk_bytes,
        num_parameters=source.num_parameters,
        quantisation=source.quantisation,
        load_tokenizer=lambda: tokenizer_from_folder(folder),
        library_config=config,
    )


def open_transformers_gguf(path: Path) -> TransformersCheckpoint:
    """Open a GGUF file for transformers, which dequantises all of it into memory.

    Raises:
        UnsupportedModelError: an architecture that the library does not read from GGUF files.
        DamagedModelError: the file is truncated or incomplete.
    """
    from outrider.models.tokenizer.gguf import tokenizer_from_gguf

    file = open_gguf_file(path)
    config = _library_config(path, str(path))
    _refuse_other_models(config.to_dict(), str(path))
    if "rope_freqs.weight" in file.tensors:
        raise UnsupportedModelError(
            f"The file {path} scales its rotations by rope_freqs.weight, which transformers does not read from GGUF "
            "files; use the safetensors model."
        )
    sizes: dict[str, int] = {}
    for tensor in file.tensors.values():
        sizes[tensor.tensor_type.name] = sizes.get(tensor.tensor_type.name, 0) + int(tensor.n_elements)
    if not sizes:
        raise DamagedModelError(f"The file {path} holds no tensors; fetch the file again.")
    return TransformersCheckpoint(
        path=path,
        config=_numbers(config),
        defaults=defaults_from_gguf(file.metadata, path),
        disk_bytes=path.stat().st_size,
        num_parameters=sum(sizes.values()),
        quantisation=max(sizes, key=lambda kind: sizes[kind]),
        load_tokenizer=lambda: tokenizer_from_gguf(file.metadata, path),
        library_config=config,
    )


def _refuse_other_models(values: Mapping[str, Any], where: str) -> None:
    """Refuse by name what is no causal text model of the library's own."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = str(values.get("model_type", "unknown"))
    names = values.get("architectures") or ()
    architecture = str(names[0]) if isinstance(names, list | tuple) and names else kind
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind, ())
    fitting = (known,) if isinstance(known, str) else tuple(known)
    if values.get("is_encoder_decoder"):
        raise UnsupportedModelError(f"{where} describes the encoder-decoder model {architecture}; use a decoder only.")
    if any(isinstance(values.get(f"{part}_config"), dict) for part in ("vision", "audio", "text")):
        raise UnsupportedModelError(f"{where} describes the multimodal model {architecture}; use a text model.")
    if "auto_map" in values and not fitting:
        raise UnsupportedModelError(
            f"{where} describes {architecture}, whose code comes with the checkpoint; code of a checkpoint is never "
            "run, so use a model that transformers knows."
        )
    if not fitting or (names and architecture not in fitting):
        raise UnsupportedModelError(
            f"{where} describes {architecture} (model type {kind!r}), which is no causal language model of the "
            "installed transformers; use another model or a newer transformers."
        )


def _library_config(path: Path, where: str) -> Any:
    """The library's configuration object."""
    from transformers import AutoConfig

    folder, named = _source(path)
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **named)
    except Exception as error:  # the library raises what its classes happen to raise
        raise UnsupportedModelError(
            f"{where} cannot be read by the installed transformers ({_first_line(error)}); use another model."
        ) from error


def _refuse_missing_libraries(config: Any, where: str) -> None:
    """Refuse quantised weights that cannot be read here."""
    quantisation = getattr(config, "quantization_config", None)
    if quantisation is None:
        return
    from transformers.quantizers import AutoHfQuantizer

    given = quantisation if isinstance(quantisation, dict) else quantisation.to_dict()
    method = getattr(given.get("quant_method"), "value", given.get("quant_method", "an unknown method"))
    try:
        AutoHfQuantizer.from_config(quantisation, pre_quantized=True).validate_environment(device_map=None)
    except Exception as error:  # missing packages, missing devices, unknown methods
        raise UnsupportedModelError(
            f"{where} describes weights quantised with {method}, which cannot be read here ({_first_line(error)}); "
            "use the unquantised model or a GGUF file."
        ) from error


def _numbers(config: Any) -> ModelNumbers:
    from outrider.models.transformers_model import context_length

    text = config.get_text_config(decoder=True)
    return ModelNumbers(
        family=str(config.model_type),
        vocab_size=int(text.vocab_size),
        hidden_size=int(getattr(text, "hidden_size", 0)),
        num_layers=int(getattr(text, "num_hidden_layers", 0)),
        context_length=context_length(text),
    )


def _load_model(path: Path, config: Any, dtype: "torch.dtype") -> Any:
    """The library's model with all its weights."""
    try:
        model, report = _read_folder(path, dtype) if path.is_dir() else _read_gguf(path, config, dtype)
    except (OSError, RuntimeError, ValueError, KeyError, ImportError) as error:
        raise UnsupportedModelError(
            f"transformers cannot load {path} ({_first_line(error)}); use another model."
        ) from error
    if missing := sorted(report["missing_keys"]):
        raise DamagedModelError(f"{path} lacks {len(missing)} tensors ({missing[0]}, ...); fetch the model again.")
    if wrong := sorted(map(str, report["mismatched_keys"])):
        raise DamagedModelError(f"{path} has a tensor of another shape than its configuration says ({wrong[0]}).")
    if extra := sorted(report["unexpected_keys"]):
        logger.warning("%s holds %d tensors that its model does not use (%s, ...).", path, len(extra), extra[0])
    return model


def _read_folder(folder: Path, dtype: "torch.dtype") -> tuple[Any, dict[str, Any]]:
    """A model with its weights from safetensors, and the library's report of what was missing."""
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=dtype,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
    )
    return model, report


def _read_gguf(path: Path, config: Any, dtype: "torch.dtype") -> tuple[Any, dict[str, Any]]:
    """The same from a GGUF file, dequantised."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model, report = type(empty).from_pretrained(
        None, config=config, state_dict=_gguf_tensors(path, empty), dtype=dtype, output_loading_info=True
    )
    return model, report


def _gguf_tensors(path: Path, empty: Any) -> "dict[str, torch.Tensor]":
    """All tensors by the library's names: by our own reader where it knows the family, else by the library's tables."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    try:
        source = open_gguf(path).source
    except UnsupportedModelError:
        with redirect_stderr(StringIO()):  # its bar cannot be turned off otherwise
            tensors: dict[str, torch.Tensor] = load_gguf_checkpoint(
                str(path), return_tensors=True, model_to_load=empty
            )["tensors"]
        return tensors
    return {name: source.tensor(name) for name in source.names()}


def _source(path: Path) -> tuple[Path, dict[str, str]]:
    """The folder that the library is given, and the file in it where it is a GGUF file."""
    return (path, {}) if path.is_dir() else (path.parent, {"gguf_file": path.name})


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's progress bars and remarks: what matters of them is said in a sentence of ours."""
    from transformers.utils import logging as library

    shown, level = library.is_progress_bar_enabled(), library.get_verbosity()
    library.disable_progress_bar()
    library.set_verbosity_error()
    try:
        yield
    finally:
        library.set_verbosity(level)
        if shown:
            library.enable_progress_bar()


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".")[:200] if lines else type(error).__name__
