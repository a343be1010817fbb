"""The command line: one file a subcommand.

This package turns words into calls and results into lines. Invariants: `--help` imports no tensor library; a user's
mistake ends in one sentence on standard error and a non-zero exit, never in a traceback.
"""

import os
import sys

from outrider.cli.app import app
from outrider.cli.console import keep_quiet

__all__ = ["main"]


def main() -> None:
    """Run the command line; the entry point of the `outrider` command."""
    _open_streams()
    keep_quiet()
    _share_the_cores()
    app(prog_name="outrider")


def _share_the_cores() -> None:
    """Let waiting threads give way soon, unless the user has said how they wait; read when PyTorch is loaded.

    As they are, they spin for milliseconds, which beside another busy process costs three times what a pass takes.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "5000")


def _open_streams() -> None:
    """Make both output streams take any text, also closed ones and those of terminals that lack a sign."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        getattr(sys, name).reconfigure(errors="replace")
