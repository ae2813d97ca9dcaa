"""A model looked at before it is cut: its layers, what each uses and takes, and where it will be cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from lockstep.byte_sizes import write_bytes
from lockstep.errors import BadInput
from lockstep.stages.actions import bubble, uneven_bubble
from lockstep.stages.chain import Declared, Example, Layer, find_layers
from lockstep.stages.cuts import (
    AUTO,
    IMBALANCE,
    Cost,
    best_cut,
    check_layers,
    check_memory,
    pieces,
    read_cut,
    slowest,
    stage_bytes,
    stage_ranges,
)
from lockstep.stages.layer_costs import RUNS, LayerFacts, measure_layers, untouched, use_of_layers
from lockstep.stages.ownership import Ownership, share_out
from lockstep.stages.same_result import check_same_result
from lockstep.stages.stage_memory import UNLIMITED, StageMemory


@dataclass(frozen=True)
class Survey:
    """A chain of layers."""

    model: nn.Module
    layers: list[Layer]
    facts: list[LayerFacts]
    """Of each layer."""
    example: Example | None
    memory: StageMemory
    """What a stage holds, and how much it may."""

    @classmethod
    def of(
        cls,
        model: nn.Module,
        declared: Declared | None,
        example: Example | None,
        stages: int,
        memory: StageMemory = UNLIMITED,
    ) -> Survey:
        """Find a model's layers and what they use; refuse a model that cannot be cut into so many stages."""
        with untouched(model):  # a chain is found by running a lane, which BatchNorm would remember
            layers = find_layers(model, declared, example)
        check_layers(len(layers), stages)
        survey = cls(model, layers, use_of_layers(model, layers, example), example, memory)
        why = next((one.joined for one in survey.facts if one.joined), "")
        check_layers(pieces(survey.costs()), stages, why)
        if example is not None:
            check_same_result(model, layers, example)
        return survey

    @property
    def names(self) -> list[str]:
        """Of the layers."""
        return [layer.name for layer in self.layers]

    @property
    def trained(self) -> list[str]:
        """The parameters that are trained, by their names in the state."""
        return [f"parameter/{name}" for name, one in self.model.named_parameters() if one.requires_grad]

    def measure(self, runs: int = RUNS) -> None:
        """Measure the layers' time and memory, if there is an example to run; with no runs, memory alone."""
        if self.example is not None:
            measure_layers(self.model, self.layers, self.facts, self.example, runs)

    @property
    def timed(self) -> bool:
        """Whether the layers' time is known."""
        return any(one.forward + one.backward for one in self.facts)

    def costs(self) -> list[Cost]:
        """Return what a cut weighs: measured times, else numbers of parameters in place of them; and memory."""
        costs = [one.cost(self.memory.copies) for one in self.facts]
        if self.timed:
            return costs
        return [cost._replace(seconds=1.0 + one.parameters) for cost, one in zip(costs, self.facts, strict=True)]

    def cut(self, asked: str, stages: int) -> list[int]:
        """Return the cut that was typed, or the best one; refuse one with a stage that needs too much memory."""
        costs, limit = self.costs(), self.memory.limit
        if asked != AUTO:
            cut: list[int] | None = read_cut(asked, self.names, stages)
            for one in (self.facts[layer] for layer in cut or ()):
                if one.joined:
                    raise BadInput(f"--cut {asked}: {one.name} cannot be cut from the layer before it: {one.joined}")
        else:
            cut = best_cut(costs, stages, limit, self.memory.in_flight)
        if limit is not None:
            check_memory(costs, cut, stages, limit, self.memory.in_flight)
        assert cut is not None  # without a limit of memory there is always one
        return cut

    def ownership(self, cut: Sequence[int]) -> Ownership:
        """Return which stage holds what."""
        parameters = dict(self.model.named_parameters())
        others = [f"parameter/{name}" for name, parameter in parameters.items() if not parameter.requires_grad]
        others += [f"buffer/{name}" for name, _ in self.model.named_buffers()]
        return share_out(cut, [one.used for one in self.facts], self.trained, others)

    def warning(self, cut: Sequence[int]) -> str:
        """Return what is wrong with a cut that was typed; empty if it is about as good as the best."""
        costs, stages = self.costs(), len(cut) + 1
        best = best_cut(costs, stages, self.memory.limit, self.memory.in_flight)
        if best is None or not self.timed:
            return ""
        times = slowest(cut, costs) / slowest(best, costs)
        if times <= IMBALANCE:
            return ""
        better = ",".join(self.names[layer] for layer in best)
        return f"the slowest stage takes {times:.1f} times as long as that of --cut {better}"

    def describe(self, cut: Sequence[int], order: str, lanes: int) -> str:
        """Say in one line what was chosen: per stage its layers, parameters, time and memory, and the bubble."""
        stages = []
        memory = stage_bytes(cut, self.costs(), self.memory.in_flight)
        for number, part in enumerate(stage_ranges(cut, len(self.layers))):
            facts = [self.facts[layer] for layer in part]
            names = self.names[part[0]] if len(part) == 1 else f"{self.names[part[0]]} to {self.names[part[-1]]}"
            size = sum(one.parameters for one in facts) / 1e6
            took = sum(one.forward + one.backward for one in facts) * 1e3
            time = f", {took:.2f} ms a lane, {write_bytes(memory[number])}" if took else ""
            stages.append(f"stage {number}: {names} ({size:.2f} M parameters{time})")
        expected = self.expected_bubble(cut, order, lanes)
        here = "" if expected is None else f", {expected:.0%} with these"
        return f"{'; '.join(stages)}; bubble {bubble(order, len(stages), lanes):.0%} if stages take equally long{here}"

    def expected_bubble(self, cut: Sequence[int], order: str, lanes: int) -> float | None:
        """Return the bubble that the measured times of a cut's stages give; None if they were not measured."""
        parts = [[self.facts[layer] for layer in part] for part in stage_ranges(cut, len(self.layers))]
        seconds = [(sum(one.forward for one in part), sum(one.backward for one in part)) for part in parts]
        return uneven_bubble(order, seconds, lanes) if any(forward for forward, _ in seconds) else None
