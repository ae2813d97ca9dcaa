"""Memory that ran out: how torch says it, and what to tell the user."""

from __future__ import annotations

ADVICE = (
    "out of memory: `lockstep fit RECIPE` shows what each strategy needs and what fits, see the page "
    '"My model does not fit" (lockstep docs my-model-does-not-fit)'
)
KILLED = "out of memory kills look like this; `lockstep fit RECIPE` shows what fits"
WORDS = ("MemoryError", "can't allocate memory", "out of memory", "OutOfMemoryError", "Cannot allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an exception tells that memory ran out: Python's own, a device's, or of torch's CPU allocator."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError | OSError) and says_out_of_memory(str(error))


def says_out_of_memory(text: str) -> bool:
    """Say whether a text, such as the report of a failure, tells that memory ran out."""
    return any(word in text for word in WORDS)
