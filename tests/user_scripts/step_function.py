import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
def make_model(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))
def make_dataset():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(300, 8, generator=g)
    return TensorDataset(x, (x.sum(1) > 0).long())
def train_step(model, batch, criterion, optimizer):
    x, y = batch
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()
def main():
    width = 32
    net = make_model(width)
    loader = DataLoader(make_dataset(), batch_size=30, shuffle=True, num_workers=0)
    ce = nn.CrossEntropyLoss(label_smoothing=0.1)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.1)
    for epoch in range(2):
        total = 0
        for batch in loader:
            total += train_step(net, batch, ce, opt)
        print(total)
if __name__ == "__main__":
    main()
