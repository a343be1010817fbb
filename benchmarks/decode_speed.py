"""A one-token step against transformers' own generate, same weights, taking turns in one process.

    python benchmarks/decode_speed.py --model smollm2

transformers runs the dequantised weights in bfloat16 with scaled-dot-product attention. Both decode the same number of
tokens greedily behind a prompt of the same length; medians over the rounds. Needs the `dev` extra's transformers.
"""

import argparse
import json
import statistics
import time
from dataclasses import asdict

import torch
import transformers

from outrider.core.params import SamplingParams
from outrider.engine.calibrate import measure_passes, read_bandwidth
from outrider.engine.engine import Engine
from outrider.models.loading import open_checkpoint
from outrider.models.loading.load import LoadedModel, load_model


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--without-transformers", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    loaded = load_model(options.model)
    prompt = [(7919 * i + 11) % 4096 + 300 for i in range(options.context)]
    ours: list[float] = []
    theirs: list[float] = []
    peer = None if options.without_transformers else transformers_twin(options.model)
    for turn in range(options.rounds + 1):
        seconds = outrider_seconds(loaded, prompt, options.tokens)
        other = 0.0 if peer is None else transformers_seconds(peer, prompt, options.tokens)
        if turn:  # the first turn warms up
            ours.append(seconds)
            theirs.append(other)
    bandwidth = read_bandwidth()
    step = statistics.median(ours)
    costs = measure_passes(loaded.target, [1, 8, 16, 32], [options.context])
    report = {
        "model": options.model,
        "outrider_step_seconds": step,
        "transformers_step_seconds": statistics.median(theirs),
        "ratio": statistics.median(theirs) / step,
        "weight_bytes": loaded.target.weight_bytes,
        "read_bandwidth": bandwidth,
        "fraction_of_limit": loaded.target.weight_bytes / bandwidth / step,
        "passes": [asdict(cost) for cost in costs],
    }
    print(json.dumps(report, indent=2))


def outrider_seconds(loaded: LoadedModel, prompt: list[int], num_tokens: int) -> float:
    """Seconds a token of plain decoding through the whole engine."""
    engine = Engine(loaded.target)
    (request,) = engine.submit(prompt, SamplingParams(max_tokens=num_tokens + 1))
    engine.step()
    started = time.perf_counter()
    while engine.num_unfinished:
        engine.step()
    return (time.perf_counter() - started) / (request.num_output - 1)


def transformers_twin(name: str) -> torch.nn.Module:
    """The same weights, dequantised, in transformers' own class."""
    checkpoint = open_checkpoint(name)
    config = checkpoint.config
    classes = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral"}
    family = classes[config.family]
    twin_config = getattr(transformers, f"{family}Config")(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.context_length,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
        tie_word_embeddings=config.tied_head,
        attn_implementation="sdpa",
    )
    with torch.device("meta"):
        twin = getattr(transformers, f"{family}ForCausalLM")(twin_config)
    twin = twin.to(torch.bfloat16).to_empty(device="cpu")
    state = {n: checkpoint.source.tensor(n).to(torch.bfloat16) for n in checkpoint.source.names()}
    twin.load_state_dict(state, strict=not config.tied_head)
    twin.tie_weights()
    rotary = twin.model.rotary_emb
    rotary.inv_freq = 1.0 / config.rope.theta ** (torch.arange(0, config.head_dim, 2).float() / config.head_dim)
    rotary.original_inv_freq = rotary.inv_freq
    return twin.eval()


def transformers_seconds(model: torch.nn.Module, prompt: list[int], num_tokens: int) -> float:
    """Seconds a token of `generate`, the prompt's own pass left out."""
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)

    def run(count: int) -> float:
        started = time.perf_counter()
        model.generate(
            ids, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0
        )
        return time.perf_counter() - started

    with torch.inference_mode():
        return (run(num_tokens + 1) - run(1)) / num_tokens


if __name__ == "__main__":
    main()
