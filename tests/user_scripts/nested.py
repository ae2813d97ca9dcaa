import argparse
import math

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, random_split


class Waves(Dataset):
    def __init__(self, count, length):
        phase = torch.rand(count, 1, generator=torch.Generator().manual_seed(7)) * 2 * math.pi
        self.clean = torch.sin(torch.linspace(0, 4 * math.pi, length) + phase)

    def __len__(self):
        return len(self.clean)

    def __getitem__(self, index):
        return self.clean[index] + 0.1, self.clean[index]


class AutoEncoder(nn.Module):
    def __init__(self, length, code):
        super().__init__()
        self.encoder = nn.Linear(length, code)
        self.decoder = nn.Linear(code, length)

    def forward(self, x):
        return self.decoder(torch.relu(self.encoder(x)))


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main():
    args = parse_args()
    train_set, test_set = random_split(Waves(200, 24), [180, 20])
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=args.batch_size)
    model = AutoEncoder(24, 4).to(args.device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    criterion = nn.MSELoss()

    def train(epoch):
        model.train()
        total = 0.0
        for noisy, clean in train_loader:
            noisy, clean = noisy.to(args.device), clean.to(args.device)
            optimizer.zero_grad()
            loss = criterion(model(noisy), clean)
            loss.backward()
            optimizer.step()
            total += loss.item()
        return total

    @torch.no_grad()
    def test():
        model.eval()
        return sum(criterion(model(noisy), clean).item() for noisy, clean in test_loader)

    for epoch in range(1, args.epochs + 1):
        total = train(epoch)
        print(epoch, total, test())


if __name__ == "__main__":
    main()
