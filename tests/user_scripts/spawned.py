import torch, torch.nn as nn, os
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler
BATCH = 16
class Toy(Dataset):
    def __init__(self, n): self.x = torch.randn(n, 6)
    def __len__(self): return len(self.x)
    def __getitem__(self, i): return {"x": self.x[i], "labels": self.x[i].argmax()}
class Model(nn.Module):
    def __init__(self, width=8, depth=2):
        super().__init__(); self.l = nn.Sequential(*[nn.Linear(6,6) for _ in range(depth)])
    def forward(self, x, labels):
        o = self.l(x); return {"logits": o, "loss": nn.functional.cross_entropy(o, labels)}
def get_loaders(rank):
    ds = Toy(200)
    return DataLoader(ds, batch_size=BATCH, shuffle=True), DataLoader(Toy(20))
def run(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    cfg = dict(width=8, depth=3)
    model = Model(**cfg)
    ddp_model = DDP(model.to(rank), device_ids=[rank])
    train_loader, val = get_loaders(rank)
    optimizer = torch.optim.AdamW(ddp_model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler()
    for epoch in range(5):
        for batch in train_loader:
            batch = {k: v.to(rank) for k, v in batch.items()}
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = ddp_model(**batch)
                loss = out["loss"]
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
if __name__ == "__main__":
    import torch.multiprocessing as mp
    mp.spawn(run, args=(2,), nprocs=2)
