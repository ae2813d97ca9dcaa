import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(F.relu(self.body(x)))


def main():
    g = torch.Generator().manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(48, 6, generator=g), torch.arange(48) % 3), batch_size=16, shuffle=True)
    net = Net()
    opt = torch.optim.AdamW([{"params": net.body.parameters(), "lr": 1e-4}, {"params": net.head.parameters()}], lr=1e-3)
    for epoch in range(2):
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            opt.step()


if __name__ == "__main__":
    main()
