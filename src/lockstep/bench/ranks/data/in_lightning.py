"""The same data in Lightning's spawned ranks: run as a program of its own, because it starts ranks of its own."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader

from lockstep.bench.ranks.data.loader_epochs import BATCH, EPOCHS, RANKS, RATE
from lockstep.bench.ranks.data.sides import make


class Model(lightning.LightningModule):
    """One layer: the data is what is measured."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(elements, 1)

    def training_step(self, batch: Any, _: int) -> Any:
        """Return the loss."""
        return self.layer(batch).square().mean()

    def configure_optimizers(self) -> Any:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=RATE)


def main() -> None:
    """Fit on spawned ranks, and print the seconds."""
    side, items, elements = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    data = make(side, torch.randn(items, elements))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy="ddp_spawn",
        max_epochs=EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    began = time.perf_counter()
    trainer.fit(Model(elements), DataLoader(data, BATCH, shuffle=True))
    print(time.perf_counter() - began)  # noqa: T201 - its result


if __name__ == "__main__":
    main()
