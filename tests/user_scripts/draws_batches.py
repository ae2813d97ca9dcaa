import math
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class Config:
    batch_size: int = 32
    block: int = 24
    max_steps: int = 60
    grad_accum: int = 4
    lr: float = 3e-3

cfg = Config()
series = torch.sin(torch.arange(3000) / 7.0)
train_data, val_data = series[:2500], series[2500:]

def get_batch(split):
    data = train_data if split == "train" else val_data
    ix = torch.randint(len(data) - cfg.block - 1, (cfg.batch_size,))
    x = torch.stack([data[i:i + cfg.block] for i in ix])
    y = torch.stack([data[i + cfg.block] for i in ix])
    return x, y

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(cfg.block, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 1))
    def forward(self, x):
        return self.body(x).squeeze(1)

def get_lr(step):
    return cfg.lr * 0.5 * (1 + math.cos(math.pi * step / cfg.max_steps))

model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
for step in range(cfg.max_steps):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(step)
    optimizer.zero_grad()
    for micro in range(cfg.grad_accum):
        x, y = get_batch("train")
        loss = nn.functional.mse_loss(model(x), y) / cfg.grad_accum
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0:
        print(step, loss.item())
