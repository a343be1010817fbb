import time
from pathlib import Path

import numpy as np
import pytest

from outrider.bench import memory
from outrider.bench.memory import PeakMemory, anonymous_bytes

needs_linux = pytest.mark.skipif(anonymous_bytes() is None, reason="this system does not report private memory")


@needs_linux
def test_a_peak_that_is_gone_again_is_seen() -> None:
    with PeakMemory(0.001) as peak:
        before = peak.peak_bytes()
        block = np.ones(50_000_000 // 8)
        for _ in range(500):
            time.sleep(0.002)
            if (peak.peak_bytes() or 0) - (before or 0) > 40_000_000:
                break
        del block
        during = peak.peak_bytes()
        peak.restart()
        after = peak.peak_bytes()
    assert before is not None
    assert during is not None
    assert after is not None
    assert during - before > 40_000_000
    assert during - after > 40_000_000


def test_a_system_that_does_not_tell_gives_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "missing")
    with PeakMemory(0.001) as peak:
        assert peak.peak_bytes() is None
