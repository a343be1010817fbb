"""Threads that were let go are gone, and come back when they are needed."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, torch
from outrider.models.threads import release_team

def multiply():
    torch.ones(600, 600) @ torch.ones(600, 600)
    torch.arange(200_000.0).exp()
    return len(os.listdir("/proc/self/task"))

alone = len(os.listdir("/proc/self/task"))
working = multiply()
release_team()
released = len(os.listdir("/proc/self/task"))
print(alone, working, released, multiply())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads as Linux tells them")
def test_a_team_that_is_let_go_is_gone_and_comes_back():
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | {"OMP_NUM_THREADS": "3"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    alone, working, released, again = map(int, run.stdout.split())
    assert alone < working == again
    assert released == alone
