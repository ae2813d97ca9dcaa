"""A language model over a few symbols whose input and output share one weight, with a buffer that is not persistent."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from lockstep import Recipe

SYMBOLS, LENGTH = 11, 6


class Tied(nn.Module):
    """Embeds, mixes what came before, and predicts the next symbol with the embedding's own weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, 8)
        self.mix = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, SYMBOLS, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("past", torch.ones(LENGTH, LENGTH).tril() / LENGTH, persistent=False)

    def forward(self, symbols: Tensor) -> Tensor:
        past: Tensor = self.get_buffer("past")
        mixed = self.mix(past @ self.embed(symbols))
        logits: Tensor = self.head(torch.tanh(self.norm(mixed.transpose(1, 2)).transpose(1, 2)))
        return logits


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randint(0, SYMBOLS, (48, LENGTH + 1), generator=generator).cumsum(1) % SYMBOLS)


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())


def metrics(model: nn.Module, batch: list[Tensor]) -> dict[str, Tensor]:
    return {"loss": loss(model, batch)}


def recipe() -> Recipe:
    return Recipe(
        model=Tied,
        data=data,
        loss=loss,
        evaluate=metrics,
        optimizer=lambda ps: torch.optim.AdamW(ps, lr=0.01),
        global_batch=12,
        epochs=2,
    )
