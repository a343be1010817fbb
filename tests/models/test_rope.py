"""Rotation tables: the same bits in every process."""

import numpy as np
import torch

from outrider.models.config import Rope
from outrider.models.rope import RotationTable, inverse_frequencies


def test_rotations_are_the_rounded_cosines_and_sines_wherever_memory_lies() -> None:
    rope = Rope(theta=1e5)
    table = RotationTable(rope, 64, torch.device("cpu"))
    positions = torch.arange(3000)
    rows = table.rows(positions, 2999)[:, 0]
    angles = torch.outer(positions.float(), inverse_frequencies(rope, 64)[0]).numpy().astype(np.float64)
    assert np.array_equal(rows.real.numpy(), np.cos(angles).astype(np.float32))
    assert np.array_equal(rows.imag.numpy(), np.sin(angles).astype(np.float32))
