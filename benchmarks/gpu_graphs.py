"""What `gpu.py` asks of recorded passes: the numbers of passes layer by layer, their texts, what they save and cost."""

import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gpu_model import CONTEXT, GREEDY, Size, advance, compared, filled, generate, prompts, timed

from outrider.cache.base import Cache
from outrider.cache.kv import KVCache
from outrider.core.tree import depths
from outrider.drafters.scripted import ScriptedDrafter, wrong_half
from outrider.engine.engine import Engine
from outrider.models.base import ForwardInputs, ForwardOutputs, Segment
from outrider.models.decoder import Decoder
from outrider.policies.fixed import Fixed

KINDS = ((1, 1), (1, 4), (1, 8), (1, 32), (4, 2), (16, 1), (16, 4))  # requests and rows of each
PARENTS = np.asarray([-1, -1, 0, 0, 1, 2, 4])
UNRECORDED = 2  # passes of a shape before it is recorded


class LayerByLayer:
    """A decoder on caches without pages, whose passes are never recorded; implements `models.base.Target`."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.vocab_size, self.context_length = decoder.vocab_size, decoder.context_length
        self.weight_bytes, self.device, self.forward = decoder.weight_bytes, decoder.device, decoder.forward

    def make_cache(self, max_tokens: int | None = None) -> KVCache:
        """Give an empty cache."""
        config, decoder = self._decoder.config, self._decoder
        shape = (config.num_layers, config.num_kv_heads, config.head_dim)
        return KVCache(*shape, max_tokens=max_tokens, dtype=decoder.dtype, device=decoder.device)


def tree(decoder: Decoder, cache: Cache, slots: list[int]) -> ForwardOutputs:
    """A pass of one row and a tree behind it for each slot, with the logits of all."""
    width = 1 + len(PARENTS)
    positions = np.tile(np.concatenate([[CONTEXT], CONTEXT + depths(PARENTS)]), len(slots))
    tokens = (np.arange(len(positions)) * 7919 + 11) % decoder.vocab_size
    segments = [Segment(slot, number * width, width, CONTEXT, PARENTS) for number, slot in enumerate(slots)]
    return decoder.forward(ForwardInputs(tokens, positions, segments, np.arange(len(positions))), cache)


def closeness(decoder: Decoder) -> dict[str, Any]:
    """The largest difference of the logits, the largest logit, and the share of rows whose best token is equal."""
    caches = filled(LayerByLayer(decoder), 16, CONTEXT), filled(decoder, 16, CONTEXT)
    kinds: dict[str, Any] = {
        f"{count} x {width}": lambda cache, slots, c=count, w=width: advance(
            decoder, cache, slots[:c], CONTEXT, w, last=False
        )
        for count, width in KINDS
    }
    kinds |= {f"{count} x a tree": lambda cache, slots, c=count: tree(decoder, cache, slots[:c]) for count in (1, 4)}
    found, before = {}, decoder.num_recorded
    for kind, action in kinds.items():
        for _ in range(UNRECORDED + 2):
            layers, played = (action(cache, slots).logits for cache, slots in caches)
            for cache, slots in caches:
                for slot in slots:
                    cache.truncate(slot, CONTEXT)
        found[kind] = {
            "largest_difference": float((layers - played).abs().max()),
            "largest_logit": float(layers.abs().max()),
            "same_best": float((layers.argmax(1) == played.argmax(1)).float().mean()),
        }
    return {"passes": found, "recorded": decoder.num_recorded - before}


def texts(decoder: Decoder, size: Size) -> dict[str, Any]:
    """How many greedy texts of a batch are those layer by layer, plain and with drafts, and the others' margins."""
    own, params = prompts(decoder, size), replace(GREEDY, max_tokens=size.tokens)
    expected = [request.output for request in generate(Engine(LayerByLayer(decoder)), own, params, {}, None)]
    known: dict[str, list[int]] = {}
    drafter = ScriptedDrafter(wrong_half(known, decoder.vocab_size, probability=0.3))
    ways = {
        "plain": generate(Engine(decoder), own, params, {}, None),
        "scripted": generate(Engine(decoder, [drafter], Fixed(4)), own, params, known, expected),
    }
    return {way: compared(decoder, own, params, requests, expected) for way, requests in ways.items()}


def times(decoder: Decoder, size: Size) -> dict[str, Any]:
    """Milliseconds played and layer by layer, by turns; seconds and bytes that recording took."""
    (plain, slots), (paged, others) = filled(LayerByLayer(decoder), 16, CONTEXT), filled(decoder, 16, CONTEXT)
    found: dict[str, Any] = {}
    for count, width in KINDS:
        layers, played, held = [], [], [0, 0]
        for number in range(UNRECORDED + 1 + size.repeats):
            layers.append(pass_seconds(decoder, plain, slots[:count], width))
            before = reserved_bytes(decoder)
            played.append(pass_seconds(decoder, paged, others[:count], width))
            if number == UNRECORDED:
                held = [before, reserved_bytes(decoder)]
        after = UNRECORDED + 1
        layer_seconds, played_seconds = statistics.median(layers[after:]), statistics.median(played[after:])
        found[f"{count} x {width}"] = {
            "layer_by_layer_ms": 1e3 * layer_seconds,
            "played_ms": 1e3 * played_seconds,
            "times_as_fast": layer_seconds / played_seconds,
            "recording_seconds": played[UNRECORDED] - played_seconds,
            "recording_bytes": held[1] - held[0],
        }
    return {"passes": found, "planned_bytes": decoder.recorded_bytes, "recorded": decoder.num_recorded}


def pass_seconds(decoder: Decoder, cache: Cache, slots: list[int], width: int) -> float:
    """Seconds of a pass that leaves the cache as it was."""
    seconds = timed(lambda: advance(decoder, cache, slots, CONTEXT, width, last=False))
    for slot in slots:
        cache.truncate(slot, CONTEXT)
    return seconds


def reserved_bytes(decoder: Decoder) -> int:
    """What PyTorch holds of the device's memory."""
    return torch.cuda.memory_reserved(decoder.device) if decoder.device.type == "cuda" else 0
