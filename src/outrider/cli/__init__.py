"""The command line: one file a subcommand.

This package turns words into calls and results into lines. Invariants: `--help` imports no tensor library; a user's
mistake ends in one sentence on standard error and a non-zero exit, never in a traceback.
"""

import sys

from outrider.cli.app import app
from outrider.cli.console import fail
from outrider.errors import OutriderError

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; the entry point of the `outrider` command."""
    try:
        app()
    except OutriderError as error:
        sys.exit(fail(str(error)))
    except KeyboardInterrupt:
        fail("interrupted; nothing was left half-written.")
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output left; there is nobody to tell
        sys.exit(1)
