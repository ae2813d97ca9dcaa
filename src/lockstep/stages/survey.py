"""A model looked at before it is cut: its layers, what each uses and takes, and where it will be cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from lockstep.stages.actions import bubble
from lockstep.stages.chain import Declared, Layer, find_layers
from lockstep.stages.cuts import AUTO, IMBALANCE, Cost, best_cut, check_layers, read_cut, slowest, stage_ranges
from lockstep.stages.layer_costs import LayerFacts, measure_layers, untouched, use_of_layers
from lockstep.stages.ownership import Ownership, share_out

Example = Callable[[nn.Module], Tensor]
"""Runs the loss function on one lane, with any model."""


@dataclass(frozen=True)
class Survey:
    """A chain of layers."""

    model: nn.Module
    layers: list[Layer]
    facts: list[LayerFacts]
    """Of each layer."""
    example: Example | None

    @classmethod
    def of(cls, model: nn.Module, declared: Declared | None, example: Example | None, stages: int) -> Survey:
        """Find a model's layers and what they use; refuse a model that cannot be cut into so many stages."""
        with untouched(model):  # a chain is found by running a lane, which BatchNorm would remember
            layers = find_layers(model, declared, example)
        check_layers(len(layers), stages)
        return cls(model, layers, use_of_layers(model, layers, example), example)

    @property
    def names(self) -> list[str]:
        """Of the layers."""
        return [layer.name for layer in self.layers]

    def measure(self) -> None:
        """Time the layers, if there is an example to time them on."""
        if self.example is not None:
            measure_layers(self.model, self.layers, self.facts, self.example)

    def costs(self) -> list[Cost]:
        """Return what a cut weighs: measured times, else sizes."""
        if any(one.cost.seconds for one in self.facts):
            return [one.cost for one in self.facts]
        return [Cost(1.0 + one.parameters) for one in self.facts]

    def cut(self, asked: str, stages: int) -> list[int]:
        """Return the cut that was typed, or the best one."""
        if asked != AUTO:
            return read_cut(asked, self.names, stages)
        best = best_cut(self.costs(), stages)
        assert best is not None  # without a limit of memory there is always one
        return best

    def ownership(self, cut: Sequence[int]) -> Ownership:
        """Return which stage holds what."""
        parameters = dict(self.model.named_parameters())
        trained = [f"parameter/{name}" for name, parameter in parameters.items() if parameter.requires_grad]
        others = [f"parameter/{name}" for name, parameter in parameters.items() if not parameter.requires_grad]
        others += [f"buffer/{name}" for name, _ in self.model.named_buffers()]
        return share_out(cut, [one.used for one in self.facts], trained, others)

    def warning(self, cut: Sequence[int]) -> str:
        """Return what is wrong with a cut that was typed; empty if it is about as good as the best."""
        costs, stages = self.costs(), len(cut) + 1
        best = best_cut(costs, stages)
        if best is None or not any(one.cost.seconds for one in self.facts):
            return ""
        times = slowest(cut, costs) / slowest(best, costs)
        if times <= IMBALANCE:
            return ""
        better = ",".join(self.names[layer] for layer in best)
        return f"the slowest stage takes {times:.1f} times as long as that of --cut {better}"

    def describe(self, cut: Sequence[int], order: str, lanes: int) -> str:
        """Say in one line what was chosen: per stage its layers, parameters and milliseconds, and the bubble."""
        stages = []
        for number, part in enumerate(stage_ranges(cut, len(self.layers))):
            facts = [self.facts[layer] for layer in part]
            names = self.names[part[0]] if len(part) == 1 else f"{self.names[part[0]]} to {self.names[part[-1]]}"
            size = sum(one.parameters for one in facts) / 1e6
            took = sum(one.cost.seconds for one in facts) * 1e3
            time = f", {took:.2f} ms a lane" if took else ""
            stages.append(f"stage {number}: {names} ({size:.2f} M parameters{time})")
        return f"{'; '.join(stages)}; bubble {bubble(order, len(stages), lanes):.0%} if stages take equally long"
