import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.pictures = nn.Conv2d(1, 4, 5, stride=2)
        self.inner = nn.Linear(4 * 12 * 12, hidden)
        self.scores = nn.Linear(hidden, 10)

    def forward(self, x):
        x = torch.relu(self.pictures(x)).flatten(1)
        return F.log_softmax(self.scores(torch.relu(self.inner(x))), 1)


def one_pass(opt, net, where, loader, updater, number):
    net.train()
    for count, (pictures, digits) in enumerate(loader):
        pictures, digits = pictures.to(where), digits.to(where)
        updater.zero_grad()
        guess = net(pictures)
        error = F.nll_loss(guess, digits)
        error.backward()
        updater.step()
        if count % opt.print_every == 0:
            print(number, count, error.item())


def start():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--passes", type=int, default=14)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--print-every", type=int, default=10)
    parser.add_argument("--no-gpu", action="store_true")
    opt = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() and not opt.no_gpu else "cpu")
    loading = {"batch_size": opt.batch_size, "shuffle": True}
    digits = TensorDataset(torch.randn(640, 1, 28, 28), torch.randint(10, (640,)))
    loader = DataLoader(digits, **loading)
    model = Net(opt.hidden).to(device)
    updater = optim.Adadelta(model.parameters(), lr=opt.lr)
    slower = optim.lr_scheduler.StepLR(updater, step_size=1, gamma=0.7)
    for number in range(1, opt.passes + 1):
        one_pass(opt, model, device, loader, updater, number)
        slower.step()


if __name__ == "__main__":
    start()
