"""A training loop of your own: start it with `lockstep launch`, torchrun, srun or mpirun, or just python."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import lockstep

EPOCHS = 2


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Return the mean squared error."""
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


def main() -> None:
    """Fit a line."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(256, 4, generator=generator)
    dataset = TensorDataset(inputs, inputs @ torch.tensor([[1.0], [2.0], [3.0], [4.0]]))
    with lockstep.join() as world:
        trainer = lockstep.Trainer(
            world,
            lambda: nn.Linear(4, 1),
            lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            loss,
            lanes=4,
        )
        for epoch in range(EPOCHS):
            for batch in trainer.batches(dataset, global_batch=32, epoch=epoch):
                stats = trainer.step(batch)
        digest = trainer.digest()  # all workers call this together: each hashes what it holds
        if world.rank == 0:
            workers = f"{world.size} worker{'' if world.size == 1 else 's'}"
            print(f"loss {stats.global_loss:.6f} on {workers}, digest {digest[:12]}")


if __name__ == "__main__":
    main()
