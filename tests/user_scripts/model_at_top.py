import torch
from torch import nn, optim
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

WORDS = 50


class Reviews(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.arange(1, index % 7 + 3), index % 3


def collate(batch):
    words, labels = zip(*batch)
    return pad_sequence(words, batch_first=True), torch.tensor([len(one) for one in words]), torch.tensor(labels)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        self.rnn = nn.GRU(8, 12, batch_first=True)
        self.head = nn.Linear(12, 3)

    def forward(self, words, lengths):
        states, _ = self.rnn(self.embed(words))
        return self.head(states[torch.arange(len(words)), lengths - 1])


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPOCHS = 3
reviews = Reviews()
loader = DataLoader(reviews, batch_size=16, shuffle=True, collate_fn=collate)
model = Classifier().to(device)
optimizer = optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
scheduler = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=EPOCHS * len(loader))
loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)

if __name__ == "__main__":
    for epoch in range(EPOCHS):
        for step, (words, lengths, labels) in enumerate(loader):
            optimizer.zero_grad(set_to_none=True)
            logits = model(words.to(device), lengths.to(device))
            loss = loss_fn(logits, labels.to(device))
            loss.backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
