"""A recipe of your own: change model, data and loss, then type `lockstep compare my_recipe.py`.

That one command trains it every way that runs on this machine, and leaves a page with times, memory, loss, accuracy,
whether the weights are the same to the last bit, and why each way is as fast as it is.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from lockstep import Recipe

CLASSES, SIDE = 10, 16


class Net(nn.Module):
    """A small convolutional network; put yours in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 32, 3, padding=1, stride=2)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return a score per class."""
        inner = F.relu(self.second(F.relu(self.first(images))))
        scores: Tensor = self.head(self.drop(inner.mean((2, 3))))
        return scores


def make_data(samples: int, seed: int) -> TensorDataset:
    """Return noisy pictures of stripes: the class is their direction. Any dataset with a length will do."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    angle = labels * (torch.pi / CLASSES)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    waves = torch.cos(angle)[:, None, None] * x + torch.sin(angle)[:, None, None] * y
    images = torch.sin(waves) + 0.3 * torch.randn(samples, SIDE, SIDE, generator=generator)
    return TensorDataset(images[:, None], labels)


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """Return the mean over the batch."""
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def metrics(model: nn.Module, batch: list[Tensor]) -> dict[str, Tensor]:
    """Return what is shown after training."""
    images, labels = batch
    return {"accuracy": (model(images).argmax(1) == labels).float().mean()}


def recipe() -> Recipe:
    """Say what is trained; nothing here says on how many workers."""
    return Recipe(
        model=Net,
        data=lambda: make_data(4096, seed=1),
        eval_data=lambda: make_data(512, seed=2),
        loss=loss,
        evaluate=metrics,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
        global_batch=128,
        lanes=8,  # the same bits on 1 to 8 workers; `lockstep compare my_recipe.py --lanes 2,4,8` shows what that costs
    )
