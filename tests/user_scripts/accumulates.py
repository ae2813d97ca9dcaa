import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, ACCUMULATE = 3, 4


def main():
    data = TensorDataset(torch.randn(256, 6), torch.randn(256, 1))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(EPOCHS):
        for i, (x, y) in enumerate(loader):
            loss = nn.functional.mse_loss(model(x), y) / ACCUMULATE
            loss.backward()
            if (i + 1) % ACCUMULATE == 0:
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main()
