import torch
from torch import nn
HID = 16
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, HID); self.b = nn.Linear(HID, 1)
    def forward(self, x): return self.b(torch.tanh(self.a(x)))
device = "cuda:0" if torch.cuda.is_available() else "cpu"
X = torch.randn(128, 4)
Y = X.sum(1, keepdim=True)
ds = torch.utils.data.TensorDataset(X, Y)
loader = torch.utils.data.DataLoader(ds, batch_size=32, shuffle=True)
net = Net().to(device)
net = nn.DataParallel(net)
crit = nn.MSELoss()
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
accum = 4
for epoch in range(3):
    for i, batch in enumerate(loader):
        x = batch[0].to(device)
        y = batch[1].to(device)
        out = net(x)
        loss = crit(out, y)
        loss = loss / accum
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step(); opt.zero_grad()
print("done")
