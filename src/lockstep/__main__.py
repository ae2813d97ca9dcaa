"""The command's first lines, also of `python -m lockstep`: Ctrl-C during the imports ends it without a traceback."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Import the command line and run it."""
    try:
        from lockstep.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("lockstep: interrupted before anything was started\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
