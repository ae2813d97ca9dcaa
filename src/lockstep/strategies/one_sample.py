"""A lane of one sample in a model with BatchNorm: torch cannot train on it, and its own message names no lane."""

from __future__ import annotations

TOO_FEW = "more than 1 value per channel"
"""What torch says where BatchNorm has one value per channel."""


def is_one_sample_error(error: BaseException) -> bool:
    """Say whether torch refused to make statistics of one value."""
    return isinstance(error, ValueError) and TOO_FEW in str(error)


def explain_one_sample(*, lane: int, step: int, batch: int | None, lanes: int) -> str:
    """Return the message for a lane of one sample: where it is, and the three ways out."""
    size = "its batch" if batch is None else f"a batch of {batch} samples"
    return (
        f"lane {lane} of {lanes} has 1 sample in step {step} ({size}), and BatchNorm cannot make statistics of one "
        "sample: use drop_last (--drop-last) if only the last batch of an epoch is that small, fewer lanes "
        "(--lanes), or another global batch (--global-batch)"
    )
