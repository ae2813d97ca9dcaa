"""What is known of a recipe after one lane of it was run: the input of all formulas."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LayerMemory:
    """One layer of a model that can be cut."""

    name: str
    seconds: float
    """Forward and backward of a lane."""
    weights: int
    """Bytes of its trained weights."""
    keeps: int
    """Bytes that it keeps of a lane for backward."""
    passes: int
    """Bytes that it hands on."""
    joined: bool = False
    """Whether it cannot be cut from the layer before it."""


@dataclass(frozen=True, kw_only=True)
class LaneFacts:
    """Bytes, as one process of the run would count them: its memory on the CPU, what it allocates on a device."""

    device: str
    measure: str
    """What was measured, as reports call it."""
    free: int = 0
    """What is free on this machine, or on the device."""
    lanes: int
    """Of the global batch."""
    global_batch: int
    """Samples per step."""
    base: int
    """Interpreter, torch and what the recipe imports, after a lane was run; 0 on a device."""
    compiler: int = 0
    """torch's compiler, which torch's own strategies import; 0 if the recipe does so too, or on a device."""
    data: int = 0
    """The training data and the evaluation data; 0 on a device."""
    data_peak: int = 0
    """The most while these were made."""
    batch: int = 0
    """The samples of one lane; 0 on a device, where they are part of the lane."""
    weights: int
    """All that is trained."""
    frozen: int = 0
    """Weights that are not trained, and buffers."""
    buffers: int = 0
    """Float buffers, which lanes average: BatchNorm's statistics."""
    largest: int
    """The largest trained tensor."""
    small: int = 0
    """Trained tensors that are too small to be divided."""
    block: int = 0
    """The largest part of the model that is gathered at once where weights are sharded."""
    state: int
    """Of the optimizer, for the whole model."""
    sliced: bool = True
    """Whether the optimizer can work on slices."""
    kept: int
    """What a lane's forward keeps for backward."""
    lane: int
    """The most that one lane's forward and backward take; its weights' gradients are freed as they come."""
    evaluates: bool = True
    """Whether the recipe has an evaluation."""
    layers: tuple[LayerMemory, ...] = ()
    """Where the model can be cut."""
    uncut: str = ""
    """Why it cannot be cut."""

    @property
    def keeps_freed(self) -> bool:
        """Whether freed memory still counts: the C library keeps it for the next step."""
        return self.device == "cpu"
