"""Need: what the largest worker takes at its peak, by what it is for."""

from __future__ import annotations

from dataclasses import dataclass

PARTS = ("base", "data", "weights", "gradients", "optimizer", "activations", "exchange", "freed")


@dataclass(frozen=True, kw_only=True)
class Need:
    """Bytes of one worker, the largest; a part that several workers of a host share counts in each that touches it.

    So does the peak memory in a report. `host` counts it once.
    """

    base: int
    """Interpreter, torch, and what the recipe imports."""
    data: int = 0
    """Data sets, and batches that are read ahead."""
    weights: int
    """With buffers."""
    gradients: int
    """Sums over lanes, and gradients that wait to be added."""
    optimizer: int
    """Its state."""
    activations: int
    """What forward keeps for backward, of the lanes in flight, and what either takes on the way."""
    exchange: int = 0
    """What comes from other workers."""
    freed: int = 0
    """Memory that is free and not given back: what making the data and the model, or an evaluation, takes more than a
    step, and gaps between tensors."""
    host: int = 0
    """All workers of one host."""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, int]:
        """Return the bytes by name."""
        return {name: getattr(self, name) for name in PARTS}
