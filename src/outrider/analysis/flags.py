"""How other servers are told the same: the flags of vLLM, SGLang and TGI for a drafter and a length.

Words only. This module knows the public options of other projects, nothing of their speed. Invariant: what another
server has no flag for is said to be missing, never given a flag that means something else.

Source:
    vLLM, `docs/features/speculative_decoding` (n_gram, suffix, draft_model); SGLang, "Speculative Decoding" and "Server
    Arguments"; Text Generation Inference, "Speculation" and `text-generation-launcher --help`.
"""

import json
from collections.abc import Mapping

__all__ = ["server_flags"]

_NOTHING = "no flag: speculation is off unless it is asked for"


def server_flags(drafter: str, options: Mapping[str, object], length: int) -> dict[str, str]:
    """Server -> its flags, or a sentence where it has none.

    Args:
        drafter: name of the drafter, such as `ngram`; another name than those of model-free drafters and
            `draft_model` has no counterpart.
        options: the drafter's options.
        length: draft tokens a pass; 0 is plain decoding.
    """
    if length < 1:
        return dict.fromkeys(("vLLM", "SGLang", "TGI"), _NOTHING)
    return {
        "vLLM": _vllm(drafter, options, length),
        "SGLang": _sglang(drafter, options, length),
        "TGI": f"--speculate {length}" if drafter == "ngram" else f"nothing like the drafter {drafter}",
    }


def _vllm(drafter: str, options: Mapping[str, object], length: int) -> str:
    config: dict[str, object] = {"method": drafter, "num_speculative_tokens": length}
    if drafter == "ngram":
        config |= {f"prompt_lookup_{end}": options[end] for end in ("max", "min") if end in options}
    elif drafter == "draft_model":
        config["model"] = options.get("model", "MODEL")
    elif drafter != "suffix":
        return f"nothing like the drafter {drafter}"
    return f"--speculative-config '{json.dumps(config)}'"


def _sglang(drafter: str, options: Mapping[str, object], length: int) -> str:
    """SGLang counts the token before the draft among the draft tokens."""
    size = f"--speculative-num-draft-tokens {length + 1}"
    if drafter == "ngram":
        window = f" --speculative-ngram-max-match-window-size {options['max']}" if "max" in options else ""
        return f"--speculative-algorithm NGRAM {size}{window}"
    if drafter == "draft_model":
        model = options.get("model", "MODEL")
        steps = f"--speculative-num-steps {length} --speculative-eagle-topk 1"
        return f"--speculative-algorithm STANDALONE --speculative-draft-model-path {model} {steps} {size}"
    return f"nothing like the drafter {drafter}"
