"""torch imports its compiler when something compiles, unless the user wants it left alone."""

from __future__ import annotations

from lockstep import process_wide
from lockstep.torch_compat.late_compiler import stand_in


def delay_compiler() -> bool:
    """Delay the import, see [Note: late compiler]; False if it has happened already, or if the user wants it."""
    return not process_wide.leave("compiler") and stand_in()
