"""One rank of a function that a cell defines: it is called once, and joins the world by itself if it needs to."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from lockstep.notebook.payload import unpack
from lockstep.notebook.returned import hand_back


def main(folder: Path) -> NoReturn:
    """Call the function; a failure becomes a note, and rank 0's value goes back to the kernel."""
    from lockstep.launch.process_exit import exit_now
    from lockstep.launch.rank_output import keep_apart
    from lockstep.output import lose_output
    from lockstep.train.failure import describe, leave_note
    from lockstep.world.detect import detect

    rank = detect(os.environ).rank
    keep_apart(os.environ, rank)
    lose_output()
    try:
        value = unpack(folder)()
        if rank == 0:
            hand_back(folder, value)
    except KeyboardInterrupt:
        exit_now(130)
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            raise
        leave_note(folder, describe(error, rank=rank, step=-1))
        exit_now(1)
    sys.exit(0)  # as any script: what libraries do at the end is done


if __name__ == "__main__":
    main(Path(sys.argv[1]))
