"""Runs one lane of a recipe and measures it: memory before, after forward, at the peak, and the size of everything.

1  data sets                what they take, and the most while they are made
2  the model, its optimizer sizes; the state is told by a step on a few elements
3  a lane, to warm up       libraries load code and make caches at the first use
4  the same lane again      what its forward keeps, and the most until its backward is done
5  the layers, if the model can be cut
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lockstep.data.loader import to_device
from lockstep.errors import BadInput
from lockstep.fit.lane_facts import LaneFacts, LayerMemory
from lockstep.fit.lane_meter import LaneMeter
from lockstep.lanes.rng import seed_lane
from lockstep.recipe import Loss
from lockstep.stages.survey import Survey
from lockstep.stages.usage import tensors_in
from lockstep.strategies.base import as_sum
from lockstep.strategies.flat_model import LARGE
from lockstep.strategies.optimizer_memory import state_bytes
from lockstep.torch_compat.late_compiler import import_compiler
from lockstep.train.compiler_import import delay_compiler
from lockstep.train.malloc import keep_freed_memory
from lockstep.train.model_check import check_initialised
from lockstep.train.stage_check import first_lane
from lockstep.world.place import Place
from lockstep.world.worker_device import choose_device

if TYPE_CHECKING:
    from lockstep.recipe import Recipe
    from lockstep.train.spec import RunSpec

RUNS = 2
"""Lanes that are measured, after one to warm up; the largest counts."""


@dataclass(frozen=True)
class _Data:
    """The data sets, and what they take."""

    training: Any
    evaluation: Any
    bytes: int
    peak: int


def measure_lane(spec: RunSpec) -> LaneFacts:
    """Return the facts of a recipe; refuse one that cannot be run."""
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    keep_freed_memory()
    delay_compiler()
    device = choose_device(spec.device, Place(launcher="inline", rank=0, size=1, local_rank=0, local_size=1))
    meter, recipe = LaneMeter(device.partition(":")[0]), spec.load()
    free = meter.free()
    data = _make_data(recipe, meter)
    plan = spec.plan(recipe, data.training)
    torch.manual_seed(recipe.seed)
    model = recipe.model()
    check_initialised(model)
    model = model.to(device)
    state, sliced = state_bytes(recipe.optimizer, model)
    batch = first_lane(recipe, data.training, plan)

    def example(one: nn.Module) -> Tensor:
        seed_lane(recipe.seed, 0, 0, device)
        returned = recipe.loss(one, to_device(batch, device))
        return returned.total if isinstance(returned, Loss) else as_sum(returned, 1).total

    held, kept, lane = _run_lanes(model, example, meter)
    trained = [_size(parameter) for parameter in model.parameters() if parameter.requires_grad]
    buffers = [_size(one) for one in model.buffers()]
    fixed = sum(buffers) + sum(_size(one) for one in model.parameters() if not one.requires_grad)
    in_batch = sum(map(_size, tensors_in(batch))) if meter.device == "cpu" else 0
    layers, uncut = _layers(recipe, model, example)
    compiler = _compiler(meter) if meter.device == "cpu" else 0
    return LaneFacts(
        device=meter.device,
        measure=meter.measure,
        free=free,
        lanes=plan.lanes,
        global_batch=recipe.global_batch,
        base=max(0, held - data.bytes - sum(trained) - fixed - in_batch) if meter.device == "cpu" else 0,
        compiler=compiler,
        data=data.bytes,
        data_peak=data.peak,
        batch=in_batch,
        weights=sum(trained),
        frozen=fixed,
        buffers=sum(_size(one) for one in model.buffers() if one.is_floating_point()),
        largest=max(trained, default=0),
        small=sum(_size(one) for one in model.parameters() if one.requires_grad and one.numel() < LARGE),
        block=_largest_block(model),
        state=state,
        sliced=sliced,
        kept=kept,
        lane=lane,
        evaluates=recipe.evaluate is not None,
        layers=layers,
        uncut=uncut,
    )


def _make_data(recipe: Recipe, meter: LaneMeter) -> _Data:
    """Make the data as a run does: its own for the evaluation too, if there is one."""
    before = meter.begin()
    training = recipe.dataset()
    evaluation = recipe.eval_dataset() if recipe.evaluate is not None else None
    peak = meter.peak()
    if meter.device != "cpu":
        return _Data(training, evaluation, 0, 0)
    return _Data(training, evaluation, max(0, meter.begin() - before), max(0, peak - before))


def _run_lanes(model: nn.Module, example: Callable[[nn.Module], Tensor], meter: LaneMeter) -> tuple[int, int, int]:
    """Return the bytes held before a lane, those that its forward keeps, and the most that it takes over all."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise BadInput("the model has no parameter that requires a gradient, so there is nothing to train")
    for parameter in trained:  # as in training, where a gradient is added up and freed
        parameter.register_post_accumulate_grad_hook(_drop)  # type: ignore[no-untyped-call]
    torch.autograd.backward(example(model))
    held = kept = lane = 0
    for _ in range(RUNS):
        held = meter.begin()
        total = example(model)
        kept = max(kept, meter.now() - held)
        torch.autograd.backward(total)
        del total
        lane = max(lane, meter.peak() - held)
    return held, kept, max(lane, kept)


def _compiler(meter: LaneMeter) -> int:
    """Return what torch's compiler takes, see [Note: late compiler]; last of all, since it stays."""
    before = meter.begin()
    import_compiler()
    return max(0, meter.begin() - before)


def _drop(parameter: Tensor) -> None:
    parameter.grad = None


def _layers(
    recipe: Recipe, model: nn.Module, example: Callable[[nn.Module], Tensor]
) -> tuple[tuple[LayerMemory, ...], str]:
    """Return the layers of a model that can be cut; else why it cannot."""
    try:
        survey = Survey.of(model, recipe.stages, example, 1)
        survey.measure()
    except BadInput as error:
        return (), str(error)
    trained = {f"parameter/{name}": _size(one) for name, one in model.named_parameters() if one.requires_grad}
    layers = []
    for facts in survey.facts:
        weights = sum(trained.get(name, 0) for name in facts.used)
        seconds = facts.forward + facts.backward
        layers.append(
            LayerMemory(
                name=facts.name,
                seconds=seconds,
                weights=weights,
                keeps=facts.keeps,
                passes=facts.passes,
                joined=bool(facts.joined),
            )
        )
    return tuple(layers), ""


def _largest_block(model: nn.Module) -> int:
    """Return the bytes of the largest child; of one that is a list of others, of the largest of these."""
    sizes = [sum(map(_size, model.parameters(recurse=False)))]
    for child in model.children():
        inner = isinstance(child, nn.Sequential | nn.ModuleList | nn.ModuleDict)
        sizes.append(_largest_block(child) if inner else sum(map(_size, child.parameters())))
    return max(sizes)


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
