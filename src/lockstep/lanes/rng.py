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


def seed_device(value: int, device: str) -> None:
    """Seed the default generator of one device, which is the current one of this thread, and of no other."""
    torch.get_device_module(device).manual_seed(value)


def random_state(device: str) -> list[bytes]:
    """Return where a lane's random stream stands: the CPU's generator, then the device's, if that is another."""
    states = [torch.get_rng_state()]
    if torch.device(device).type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state())
    return [state.numpy().tobytes() for state in states]


def set_random_state(states: list[bytes], device: str) -> None:
    """Go on with a lane's random stream where another process left it."""
    tensors = [torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in states]
    torch.set_rng_state(tensors[0])
    if len(tensors) > 1:
        torch.get_device_module(device).set_rng_state(tensors[1])
