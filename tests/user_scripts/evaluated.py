import torch
import torch.nn as nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, TensorDataset, random_split


def pictures(count, seed):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=g)
    return TensorDataset(torch.randn(count, 1, 6, 6, generator=g) + labels.view(-1, 1, 1, 1), labels)


def build(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, classes))


@torch.no_grad()
def accuracy(net, batches, where):
    net.eval()
    right, seen = 0, 0
    for x, y in batches:
        x, y = x.to(where), y.to(where)
        guess = net(x).argmax(1)
        right += (guess == y).sum().item()
        seen += len(y)
    return right / seen


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    epochs = 3
    train_set, val_set = random_split(pictures(100, 0), [90, 10])
    train_batches = DataLoader(train_set, batch_size=20, shuffle=True)
    val_batches = DataLoader(val_set, batch_size=50)
    test_batches = DataLoader(pictures(40, 1), batch_size=50)
    model = build(4).to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    total = epochs * len(train_batches)
    warm = LinearLR(opt, start_factor=0.1, total_iters=4)
    rest = CosineAnnealingLR(opt, T_max=total - 4)
    schedule = SequentialLR(opt, [warm, rest], milestones=[4])
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        model.train()
        for x, y in train_batches:
            opt.zero_grad()
            loss = criterion(model(x.to(device)), y.to(device))
            loss.backward()
            opt.step()
            schedule.step()
        print(epoch, accuracy(model, val_batches, device))
    print("test", accuracy(model, test_batches, device))


if __name__ == "__main__":
    main()
