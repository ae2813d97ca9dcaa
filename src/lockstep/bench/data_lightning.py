"""The same data in Lightning's spawned ranks: run as a program of its own, because it starts ranks of its own."""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys
import time
import warnings
from typing import Any

SECONDS = 300


def installed() -> bool:
    """Say whether Lightning is here."""
    return importlib.util.find_spec("lightning") is not None


def seconds(side: str, items: int, elements: int) -> float | None:
    """Return how long a fit takes on two ranks, or None if it fails."""
    command = [sys.executable, "-m", __name__, side, str(items), str(elements)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def main() -> None:
    """Fit a small model for two epochs on two spawned ranks, and print the seconds."""
    side, items, elements = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    import lightning
    import torch

    from lockstep.bench.data import _make
    from lockstep.bench.data_rank import BATCH

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(elements, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.layer(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-4)

    torch.set_num_threads(1)
    data = _make(side, torch.randn(items, elements))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp_spawn",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    began = time.perf_counter()
    trainer.fit(Model(), torch.utils.data.DataLoader(data, BATCH, shuffle=True))
    print(time.perf_counter() - began)  # noqa: T201 - its result


if __name__ == "__main__":
    main()
