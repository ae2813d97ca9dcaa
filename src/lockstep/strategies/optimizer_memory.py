"""How much memory an optimizer's state will need, and with it a stage: told before the first step, at little cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lockstep.byte_sizes import read_bytes
from lockstep.lanes.fold_memory import fold_memory
from lockstep.stages.stage_memory import StageMemory
from lockstep.strategies.sliced_optimizer import make_optimizer, why_replicated
from lockstep.torch_compat.optimizers import begin_anew

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from lockstep.recipe import OptimizerFactory
    from lockstep.settings import Settings

PROBE = 1024
"""Elements of the tensors on which an optimizer is tried."""
STAGE_MEMORY = "--stage-memory"


def state_bytes(factory: OptimizerFactory, model: nn.Module) -> tuple[int, bool]:
    """Return how many bytes of state the optimizer will keep for a model, and whether it can work on slices of it.

    An optimizer that works element by element is tried on a few elements of each group. Any other one does its first
    step on the real parameters, whose values it may change: give it a model that is not trained afterwards.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = make_optimizer(factory, parameters)
    if why_replicated(optimizer):
        return _after_a_step(optimizer, parameters), False
    return _by_probe(optimizer), True


def _by_probe(optimizer: Optimizer) -> int:
    sizes: dict[int, int] = {}
    """Elements, by the identity of the tensor that stands for them."""
    probes: list[nn.Parameter] = []
    for group in optimizer.param_groups:
        own = []
        for dtype in dict.fromkeys(parameter.dtype for parameter in group["params"]):
            same = [parameter for parameter in group["params"] if parameter.dtype == dtype]
            probe = nn.Parameter(torch.zeros(PROBE, dtype=dtype, device=same[0].device))
            probe.grad = torch.zeros_like(probe)
            sizes[id(probe)] = sum(parameter.numel() for parameter in same)
            own.append(probe)
        group["params"] = own
        probes += own
    begin_anew(optimizer)
    optimizer.step()
    return sum(
        sizes[id(probe)] * value.element_size()
        for probe in probes
        for value in optimizer.state.get(probe, {}).values()
        if isinstance(value, Tensor) and value.numel() == PROBE
    )


def _after_a_step(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> int:
    """Let the optimizer see one gradient at a time, so that no more than one is ever held."""
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        parameter.grad = None
    states = [value for parameter in parameters for value in optimizer.state.get(parameter, {}).values()]
    return sum(value.numel() * value.element_size() for value in states if isinstance(value, Tensor))


def stage_memory(
    factory: OptimizerFactory, model: nn.Module, settings: Settings, *, lanes: int, order: str, lazy: bool = True
) -> StageMemory:
    """Return what decides the memory of a stage; an optimizer that looks at whole tensors counts as two of them."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    weights = sum(parameter.numel() * parameter.element_size() for parameter in trained)
    replicas = settings.replicas
    optimizer = make_optimizer(factory, trained)
    state = 2.0 if why_replicated(optimizer) else _by_probe(optimizer) / max(weights, 1) / replicas
    gradients = fold_memory(lanes, replicas, 0, exact=settings.exact, lazy=lazy)
    limit = None if settings.stage_memory is None else read_bytes(settings.stage_memory, STAGE_MEMORY)
    return StageMemory(copies=1 + gradients.total + state, order=order, lanes=-(-lanes // replicas), limit=limit)
