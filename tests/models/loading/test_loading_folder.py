"""Folders in the Hugging Face layout: what opens, what is refused, and by which sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.errors import DamagedModelError, ModelError, UnsupportedModelError
from outrider.models.config import Rope
from outrider.models.loading.folder import open_folder
from outrider.models.loading.folder_config import config_from_folder
from outrider.models.loading.load import open_path
from outrider.models.loading.safetensors_source import SafetensorsSource

Folder = Callable[..., Path]
Config = Callable[..., dict[str, Any]]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize("tied", [True, False])
def test_saved_by_transformers_opens_with_the_same_numbers_and_tensors(
    family: str, tied: bool, tmp_path: Path, tiny_config: Config
) -> None:
    transformers = pytest.importorskip("transformers")
    values = tiny_config(family, tie_word_embeddings=tied, eos_token_id=7)
    kind = transformers.CONFIG_MAPPING[family](**{k: v for k, v in values.items() if k != "architectures"})
    model = transformers.AutoModelForCausalLM.from_config(kind)
    model.save_pretrained(tmp_path)

    checkpoint = open_folder(tmp_path)

    config = checkpoint.config
    assert (config.family, config.head_dim, config.tied_head, config.rope) == (family, 16, tied, Rope(10000.0))
    assert (config.qkv_bias, config.qk_norm) == (family == "qwen2", family == "qwen3")
    for name, weight in model.state_dict().items():
        if not (tied and name == "lm_head.weight"):
            assert torch.equal(checkpoint.source.tensor(name), weight)
    assert checkpoint.num_parameters == sum(p.numel() for p in model.parameters())
    assert checkpoint.defaults.stop_token_ids == (7,)


@pytest.mark.parametrize("shards", [1, 3])
def test_rows_are_rows_of_the_tensor(folder: Folder, shards: int) -> None:
    source = open_folder(folder(shards=shards)).source
    matrix = source.tensor("model.embed_tokens.weight")
    assert torch.equal(source.rows("model.embed_tokens.weight", [5, 0, 5]), matrix[[5, 0, 5]])
    assert torch.equal(source.rows("model.embed_tokens.weight", torch.tensor([2])), matrix[2:3])
    assert source.quantisation == "F32"


@pytest.mark.parametrize("keep", [0, 4, 100, 5000, -1])
def test_a_truncated_file_is_named(folder: Folder, keep: int) -> None:
    file = folder() / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:keep])
    with pytest.raises(DamagedModelError, match=r"model\.safetensors is truncated.*fetch"):
        open_folder(file.parent)


def test_a_missing_shard_is_named(folder: Folder) -> None:
    path = folder(shards=2)
    (path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(DamagedModelError, match="model-00002-of-00002"):
        open_folder(path)


def test_missing_extra_and_misshapen_tensors_are_named(folder: Folder) -> None:
    path = folder()
    weights = load_file(path / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"

    save_file({k: v for k, v in weights.items() if k != name}, path / "model.safetensors")
    with pytest.raises(DamagedModelError, match=r"lacks the tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        open_folder(path)
    save_file(weights | {"model.mtp.weight": torch.zeros(2)}, path / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match=r"model\.mtp\.weight"):
        open_folder(path)
    save_file(weights | {name: torch.zeros(3, 64)}, path / "model.safetensors")
    with pytest.raises(DamagedModelError, match=r"up_proj.*\[3, 64\].*\[96, 64\]"):
        open_folder(path)
    save_file(weights | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2)}, path / "model.safetensors")
    open_folder(path)


def test_quantised_tensors_are_refused(folder: Folder) -> None:
    path = folder()
    weights = load_file(path / "model.safetensors")
    save_file(weights | {"model.norm.weight": torch.zeros(64, dtype=torch.int8)}, path / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match=r"model\.norm\.weight.*I8.*GGUF"):
        SafetensorsSource(path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth"])
def test_pickles_are_never_loaded(folder: Folder, name: str) -> None:
    path = folder()
    (path / "model.safetensors").rename(path / name)
    with pytest.raises(DamagedModelError, match="never loaded; convert"):
        open_folder(path)


def test_adapters_are_refused(folder: Folder) -> None:
    path = folder()
    (path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    with pytest.raises(UnsupportedModelError, match=r"adapter.*org/base; merge"):
        open_folder(path)


def test_image_processors_are_refused(folder: Folder) -> None:
    path = folder()
    (path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "SomeProcessor"}))
    with pytest.raises(UnsupportedModelError, match="image input"):
        open_folder(path)


def test_a_folder_without_configuration_points_to_its_gguf_file(tmp_path: Path) -> None:
    with pytest.raises(DamagedModelError, match=r"no config\.json; give a model folder"):
        open_folder(tmp_path)
    (tmp_path / "some.gguf").touch()
    with pytest.raises(DamagedModelError, match=r"give the path of the file some\.gguf"):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("llama", {"vision_config": {}}, "multimodal"),
        ("qwen3_moe", {"num_experts": 8}, "mixture-of-experts"),
        ("mixtral", {"num_local_experts": 8}, "mixture-of-experts"),
        ("gpt2", {}, "gpt2"),
        ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantised with gptq"),
        ("llama", {"hidden_act": "gelu"}, "'gelu'"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 64}, "sliding window of 64"),
        ("llama", {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "'longrope'"),
        ("llama", {"rope_scaling": {"type": "mrope", "mrope_section": [1]}}, "'mrope'"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "factor"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "novelty": 1}}, "novelty"),
        ("llama", {"partial_rotary_factor": 0.5}, "part of each head"),
    ],
)
def test_unsupported_configurations_are_named(
    family: str, changes: dict[str, Any], words: str, tiny_config: Config
) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        config_from_folder(tiny_config(family, **changes), "config.json")


def test_a_missing_number_is_named(tiny_config: Config) -> None:
    with pytest.raises(DamagedModelError, match="hidden_size"):
        config_from_folder(tiny_config(hidden_size=None), "config.json")


@pytest.mark.parametrize(
    ("changes", "rope"),
    [
        ({"rope_theta": 5e5}, Rope(5e5)),
        ({"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, Rope(1e6)),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, Rope(1e4, "linear", 2.0)),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 32.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192,
                }
            },
            Rope(1e4, "llama3", 32.0, 8192),
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, Rope(1e4, "yarn", 4.0, 128)),
        (
            {"rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0, "attention_factor": 1.2}},
            Rope(1e6, "yarn", 4.0, 128, attention_factor=1.2),
        ),
    ],
)
def test_rope_in_old_and_new_spelling(changes: dict[str, Any], rope: Rope, tiny_config: Config) -> None:
    assert config_from_folder(tiny_config(**changes), "config.json").rope == rope


@pytest.mark.parametrize(
    ("family", "changes", "context"),
    [
        ("qwen2", {"use_sliding_window": False, "sliding_window": 64}, 128),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 128}, 128),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 64, "layer_types": ["full_attention"] * 2}, 128),
        ("mistral", {"sliding_window": 64}, 64),
        ("mistral", {"sliding_window": None}, 128),
    ],
)
def test_sliding_windows_that_change_nothing(
    family: str, changes: dict[str, Any], context: int, tiny_config: Config
) -> None:
    values = tiny_config(family) | changes
    assert config_from_folder(values, "config.json").context_length == context


def test_biases_follow_the_family(tiny_config: Config) -> None:
    llama = config_from_folder(tiny_config("llama", attention_bias=True, mlp_bias=True), "c")
    assert (llama.qkv_bias, llama.output_bias, llama.mlp_bias) == (True, True, True)
    qwen2 = config_from_folder(tiny_config("qwen2"), "c")
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.mlp_bias) == (True, False, False)


def test_end_of_text_is_the_union_of_all_places(folder: Folder) -> None:
    path = folder(eos_token_id=[2, 3])
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [4], "temperature": 0.6, "top_k": 20}))
    added = {"9": {"content": "<end>"}}
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>", "added_tokens_decoder": added}))
    defaults = open_folder(path).defaults
    assert defaults.stop_token_ids == (2, 3, 4, 9)
    assert (defaults.temperature, defaults.top_k, defaults.top_p) == (0.6, 20, None)


def test_broken_json_is_named(folder: Folder) -> None:
    path = folder()
    (path / "config.json").write_text('{"model_type": ')
    with pytest.raises(DamagedModelError, match=r"config\.json is no valid JSON"):
        open_folder(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": "abc"}, "hidden_size is 'abc'"),
        ({"hidden_size": 64.5}, r"hidden_size is 64\.5"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_attention_heads": True}, "num_attention_heads is True"),
        ({"num_hidden_layers": -2}, "num_hidden_layers is -2"),
        ({"vocab_size": [1]}, r"vocab_size is \[1\]"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3"),
        ({"head_dim": 15}, "head_dim is 15"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps is -1e-05"),
        ({"rope_theta": "big"}, "rope_theta is 'big'"),
        ({"rope_scaling": {"type": "linear", "factor": "two"}}, "factor is 'two'"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'"),
        ({"architectures": 5}, "architectures is 5"),
        ({"quantization_config": "gptq"}, "quantization_config is 'gptq'"),
        ({"num_local_experts": "many"}, "num_local_experts is 'many'"),
    ],
)
def test_a_damaged_number_is_named_with_its_value(changes: dict[str, Any], words: str, tiny_config: Config) -> None:
    with pytest.raises(DamagedModelError, match=rf"^config\.json: {words}; it must be .*fetch the file again\.$"):
        config_from_folder(tiny_config(**changes), "config.json")


def test_a_sliding_window_that_is_no_number_is_named(tiny_config: Config) -> None:
    with pytest.raises(DamagedModelError, match="sliding_window is 'wide'"):
        config_from_folder(tiny_config("mistral", sliding_window="wide"), "config.json")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"temperature": -1}, "temperature is -1"),
        ({"top_k": -2}, "top_k is -2"),
        ({"top_k": 2.5}, r"top_k is 2\.5"),
        ({"top_p": 7}, "top_p is 7"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"do_sample": "yes"}, "do_sample is 'yes'"),
        ({"eos_token_id": "end"}, "eos_token_id is 'end'"),
        ({"eos_token_id": [2, None]}, r"eos_token_id is \[2, None\]"),
    ],
)
def test_damaged_generation_settings_are_named(folder: Folder, values: dict[str, Any], words: str) -> None:
    path = folder()
    (path / "generation_config.json").write_text(json.dumps(values))
    with pytest.raises(DamagedModelError, match=rf"generation_config\.json: {words}; "):
        open_folder(path)


def test_settings_of_the_configuration_are_named_by_that_file(folder: Folder) -> None:
    with pytest.raises(DamagedModelError, match=r"model/config\.json: top_p is 'all'; "):
        open_folder(folder(top_p="all"))


def test_a_top_k_of_minus_one_is_off(folder: Folder) -> None:
    path = folder()
    (path / "generation_config.json").write_text(json.dumps({"top_k": -1}))
    assert open_folder(path).defaults.top_k == 0


@pytest.mark.parametrize(
    "values",
    [
        {"eos_token": "<end>", "added_tokens_decoder": {"nine": {"content": "<end>"}}},
        {"eos_token": "<end>", "added_tokens_decoder": 5},
        {"eos_token": ["<end>"], "added_tokens_decoder": {"9": "<end>"}},
    ],
)
def test_a_damaged_tokenizer_configuration_is_named(folder: Folder, values: dict[str, Any]) -> None:
    path = folder()
    (path / "tokenizer_config.json").write_text(json.dumps(values))
    with pytest.raises(DamagedModelError, match=r"tokenizer_config\.json .*; fetch"):
        open_folder(path)


def test_an_index_that_is_no_text_is_named(folder: Folder) -> None:
    path = folder(shards=2)
    for content in (b"\xff\xfe", b"[]", b'{"weight_map": 5}', b"{}"):
        (path / "model.safetensors.index.json").write_bytes(content)
        with pytest.raises(DamagedModelError, match=r"index\.json"):
            open_folder(path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_that_may_not_be_read_is_no_damage(folder: Folder, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder()

    def refuse(file: Any, *_args: Any, **_options: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(file))

    if name == "config.json":
        monkeypatch.setattr(Path, "read_text", refuse)
    else:
        monkeypatch.setattr("outrider.models.loading.safetensors_source.safe_open", refuse)
    with pytest.raises(ModelError, match=rf"{name} cannot be read \(Permission denied\); check its permissions\.$"):
        open_path(path)
