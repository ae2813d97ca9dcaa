"""The random numbers of a lane: the same wherever and whenever the lane is computed."""

import torch

from lockstep.seeding import derive


def lane_seed(seed: int, step: int, lane: int) -> int:
    """Return the seed of a lane's random stream."""
    return derive("lane", seed, step, lane)


def seed_lane(seed: int, step: int, lane: int, device: str) -> None:
    """Seed the default generator, from which dropout draws, with the start of this lane's stream."""
    value = lane_seed(seed, step, lane)
    if device == "cpu":
        torch.default_generator.manual_seed(value)
    else:
        torch.manual_seed(value)
