from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    width: int = 24
    lr: float = 2e-3
    batch: int = 20


class Words(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return torch.arange(index % 5 + 3), index % 2


def pad(samples):
    longest = max(len(words) for words, _ in samples)
    words = torch.zeros(len(samples), longest, dtype=torch.long)
    for row, (line, _) in enumerate(samples):
        words[row, : len(line)] = line
    return words, torch.tensor([label for _, label in samples])


class Bag(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.EmbeddingBag(16, width)
        self.head = nn.Linear(width, 2)

    def forward(self, words):
        return self.head(self.inner(words))


def main():
    accelerator = Accelerator()
    cfg = Config()
    model = Bag(cfg.width)
    opt = torch.optim.Adam(params=model.parameters(), lr=cfg.lr)
    loader = DataLoader(Words(), batch_size=cfg.batch, shuffle=True, collate_fn=pad)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    for epoch in range(4):
        for step, batch in enumerate(loader):
            with accelerator.accumulate(model):
                words, labels = batch
                loss = nn.functional.cross_entropy(model(words), labels)
                accelerator.backward(loss)
                opt.step()
                opt.zero_grad()


if __name__ == "__main__":
    main()
