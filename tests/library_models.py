"""Small models of transformers with random weights, one a family, and what the library itself says with them."""

import copy
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import transformers

from outrider.models.transformers_target import TransformersTarget, transformers_target

VOCAB = 64
WINDOW = 6  # shorter than the texts of the tests

_PLAIN = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 4, "mamba_chunk_size": 4}


def _family(name: str, **more: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, f"{name}Config")(**(_PLAIN | more))


def _old(name: str, **more: Any) -> Callable[[], Any]:
    ends = {"bos_token_id": 1, "eos_token_id": 2, "vocab_size": VOCAB}
    return lambda: getattr(transformers, f"{name}Config")(**(ends | more))


CUTTABLE = {
    "llama": _family("Llama"),
    "gpt2": _old("GPT2", n_embd=32, n_layer=2, n_head=4, n_positions=256),
    "gpt_neox": _family("GPTNeoX"),
    "gemma2, alternating window, soft caps": _family(
        "Gemma2",
        head_dim=8,
        sliding_window=WINDOW,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=10.0,
        query_pre_attn_scalar=8,
    ),
    "gemma3, window": _family("Gemma3Text", head_dim=8, sliding_window=WINDOW, query_pre_attn_scalar=8),
    "mistral, window": _family("Mistral", sliding_window=WINDOW),
    "phi3": _family("Phi3"),
    "olmo2": _family("Olmo2"),
    "cohere2, window": _family("Cohere2", sliding_window=WINDOW),
    "stablelm": _family("StableLm"),
    "opt": _old("OPT", hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=32),
    "mixtral, experts": _family("Mixtral", num_local_experts=4, num_experts_per_tok=2),
    "gpt_oss, sinks": _family("GptOss", head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=WINDOW),
    "deepseek, keys wider than values": _family(
        "DeepseekV3",
        num_key_value_heads=4,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        first_k_dense_replace=1,
    ),
    "llama4, chunks": _family(
        "Llama4Text",
        num_hidden_layers=4,
        head_dim=8,
        intermediate_size_mlp=64,
        num_local_experts=2,
        attention_chunk_size=WINDOW,
    ),
}
REPLAYED = {
    "jamba, one token a pass": _family(
        "Jamba",
        num_hidden_layers=4,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=2,
        mamba_d_state=4,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "mamba2": _old(
        "Mamba2", hidden_size=32, num_hidden_layers=2, state_size=4, head_dim=8, num_heads=8, n_groups=2, chunk_size=4
    ),
    "falcon_h1": _family("FalconH1", mamba_d_ssm=32, **(_MAMBA | {"mamba_n_heads": 4})),
    "qwen3_next": _family(
        "Qwen3Next",
        num_hidden_layers=4,
        head_dim=8,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    "lfm2": _family("Lfm2", num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"]),
    "bloom, its own attention": _old("Bloom", hidden_size=32, n_layer=2, n_head=4),
}


@cache
def library_model(name: str) -> Any:
    """The library's model, with matrices large enough that its logits are decided."""
    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config((CUTTABLE | REPLAYED)[name]()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    return model


@cache
def library_target(name: str) -> TransformersTarget:
    """A target around a copy of it: a target changes how its model attends."""
    return transformers_target(copy.deepcopy(library_model(name)))


def library_logits(name: str, tokens: Sequence[int]) -> torch.Tensor:
    """[n, V] logits of the library's own pass over a whole text, without a cache."""
    model = library_model(name)
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = model(torch.tensor([list(tokens)]), use_cache=False).logits[0].float()
    model.set_attn_implementation(before)
    return logits


def library_text(name: str, prompt: Sequence[int], count: int) -> list[int]:
    """The library's own greedy text."""
    model = library_model(name)
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    ids = torch.tensor([list(prompt)])
    options = {"max_new_tokens": count, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    written = model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :].tolist()
    model.set_attn_implementation(before)
    return written
