import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

train_x, test_x = torch.randn(64, 5), torch.randn(16, 5)
train = DataLoader(TensorDataset(train_x, train_x.sum(1)), batch_size=8, shuffle=True)
test = DataLoader(TensorDataset(test_x, test_x.sum(1)), batch_size=8)
net = nn.Linear(5, 1)
optimizer = torch.optim.Adam(net.parameters())
lower = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
for epoch in range(4):
    for x, y in train:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x).squeeze(1), y)
        loss.backward()
        optimizer.step()
    net.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in test:
            total += nn.functional.mse_loss(net(x).squeeze(1), y).item()
    net.train()
    lower.step(total / len(test))
