"""What an engine needs of memory, named part by part, and how many cache rows fit beside the rest.

This module adds up; it allocates nothing and knows no request. Invariant: the parts of a report add up to its totals,
and an engine that started has room for its weights, its working space and at least one pass of rows.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from outrider.cache.base import Cache
from outrider.drafters.base import Drafter, HoldsModel
from outrider.engine.config import EngineConfig, read_bytes
from outrider.errors import MemoryBudgetError
from outrider.models.base import RecordsPasses, Target

__all__ = ["Memory", "MemoryPart", "machine_bytes", "plan_memory"]

_GROWTH = 1.25  # a slot's tensor grows by a quarter, so that much of it may be empty; pages grow beside a quarter
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One part of an engine's memory.

    Attributes:
        name: what it is, such as "target cache".
        held_bytes: what it takes now.
        planned_bytes: what it may take at most.
    """

    name: str
    held_bytes: int
    planned_bytes: int


@dataclass(frozen=True, slots=True)
class Memory:
    """All parts of an engine's memory.

    Attributes:
        parts: the parts.
        budget_bytes: what they may take together.
        cache_tokens: rows that the cache may hold over all requests; None for no bound.
    """

    parts: tuple[MemoryPart, ...]
    budget_bytes: int | None
    cache_tokens: int | None

    @property
    def held_bytes(self) -> int:
        """What all parts take now."""
        return sum(part.held_bytes for part in self.parts)

    @property
    def planned_bytes(self) -> int:
        """What all parts may take at most."""
        return sum(part.planned_bytes for part in self.parts)

    def now(self, cache: Cache, drafters: Sequence[Drafter]) -> "Memory":
        """The same plan with what the caches and drafters hold at this moment."""
        held = {f"{drafter.name} cache": drafter.state_bytes for drafter in drafters}
        held["target cache"] = cache.nbytes
        parts = [replace(part, held_bytes=held.pop(part.name, part.held_bytes)) for part in self.parts]
        others = sum(held.values())  # what drafters without a model keep
        return replace(self, parts=(*parts, MemoryPart("drafter state", others, others)))

    def sums(self) -> str:
        """The plan as a sum in words: "target weights 257 MB + target cache 512 MB = 769 MB"."""
        terms = " + ".join(f"{part.name} {_megabytes(part.planned_bytes)}" for part in self.parts)
        return f"{terms} = {_megabytes(self.planned_bytes)}"


def plan_memory(target: Target, drafters: Sequence[Drafter], config: EngineConfig) -> Memory:
    """Decide how many rows the cache may hold, and refuse a start that cannot fit.

    Args:
        target: the model; its weights are read already, and the memory of its device is what can be shared out.
        drafters: the drafters in use; those with a model have a cache of their own with as many rows.
        config: limits; its `memory` is the budget, else what the machine has.

    Raises:
        MemoryBudgetError: weights, working space and the rows that are needed at least do not fit the budget.
    """
    models = [drafter for drafter in drafters if isinstance(drafter, HoldsModel)]
    fixed = [MemoryPart("target weights", target.weight_bytes, target.weight_bytes)]
    for drafter in models:
        size = 0 if drafter.model is target else drafter.model.weight_bytes  # a target may be its own draft model
        fixed.append(MemoryPart(f"{drafter.name} weights", size, size))
    fixed.append(MemoryPart("working space", 0, _working_bytes(target, config)))
    recorded = _recorded_bytes([target, *(drafter.model for drafter in models)])
    if recorded:
        fixed.append(MemoryPart("recorded passes", 0, recorded))
    free = machine_bytes(str(getattr(target, "device", "cpu")))
    loaded = sum(part.held_bytes for part in fixed)
    has = None if free is None else free + loaded
    budget = has if config.memory is None else read_bytes("memory", config.memory)
    least = min(target.context_length, config.chunk_tokens + config.max_nodes, config.cache_tokens or 1 << 62)
    row = sum(_row_bytes(model) for model in (target, *(drafter.model for drafter in models)))
    rows = config.cache_tokens
    if rows is None and budget is not None:
        left = budget - sum(part.planned_bytes for part in fixed)
        rows = max(least, int(left / (_GROWTH * max(1, row))))
    memory = Memory((*fixed, *_caches(target, models, rows)), budget, rows)
    if budget is not None and memory.planned_bytes > budget:
        raise MemoryBudgetError(
            f"memory is {_megabytes(budget)}{'' if config.memory is not None else ' (what the machine has)'}, but "
            f"{memory.sums()} with {rows} cache tokens; allow more memory, or fewer cache tokens, running requests or "
            "draft nodes, or take a smaller model."
        )
    return memory


def _caches(target: Target, drafters: Sequence[HoldsModel], rows: int | None) -> list[MemoryPart]:
    named = [("target cache", target), *((f"{drafter.name} cache", drafter.model) for drafter in drafters)]
    return [MemoryPart(name, 0, int(_GROWTH * (rows or 0) * _row_bytes(model))) for name, model in named]


def _row_bytes(model: Target) -> int:
    return model.make_cache().row_bytes


def _working_bytes(target: Target, config: EngineConfig) -> int:
    """Logits of the widest judged pass, and the laws made of them."""
    judged = config.max_running * (1 + config.max_nodes)
    return 2 * judged * target.vocab_size * _FLOAT_BYTES


def _recorded_bytes(models: Sequence[Target]) -> int:
    """What recorded passes work with; a model that is its own draft model counts once."""
    return sum(
        model.recorded_bytes
        for model in {id(model): model for model in models}.values()
        if isinstance(model, RecordsPasses)
    )


def machine_bytes(device: str = "cpu") -> int | None:
    """Bytes that are free on a device now; None where the system does not tell."""
    if device.startswith("cuda"):
        import torch

        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # PyTorch gives it out again
        return int(torch.cuda.mem_get_info(torch.device(device))[0] + kept)
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    except OSError:
        free = _pages()
    group = _group_bytes()
    found = [count for count in (free, group) if count is not None]
    return min(found, default=None)


def _pages() -> int | None:
    """Physical memory, where the system has no better answer."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _group_bytes() -> int | None:
    """What a container may still take; None without a limit."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        return max(0, limit - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        return None


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"
