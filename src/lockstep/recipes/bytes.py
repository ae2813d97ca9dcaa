"""`bytes`: a small causal transformer with dropout on texts of different lengths, with a loss weighted by tokens."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

from lockstep.data import Padded, Ragged
from lockstep.recipe import Loss, Recipe

VOCABULARY, WIDTH, HEADS, LAYERS, LONGEST = 256, 96, 4, 2, 128
TEXTS, EVAL_TEXTS = 1600, 160
PADDING = 0  # no text contains a zero byte

SUBJECTS = ("the ship", "a small bird", "our neighbour", "the old clock", "every river", "one lamp")
VERBS = ("follows", "carries", "forgets", "watches", "repairs", "leaves")
OBJECTS = ("the harbour", "a letter", "the first snow", "seven stones", "the way home", "its shadow")
TAILS = ("at night", "without a word", "in the rain", "before the bell rings", "twice a year")


def recipe() -> Recipe:
    """Return the recipe."""
    return Recipe(
        model=Transformer,
        data=lambda: make_texts(TEXTS, part=0),
        eval_data=lambda: make_texts(EVAL_TEXTS, part=1),
        loss=loss,
        evaluate=metrics,
        optimizer=lambda ps: AdamW(ps, lr=3e-3, weight_decay=0.01),
        global_batch=32,
        lanes=8,  # the same bits on up to 8 workers; on two, 8 lanes take about a fifth longer than 2
        stages=lambda model: [model.embed, *model.get_submodule("layers").children(), model.norm, model.head],
    )


def make_texts(count: int, *, part: int) -> Ragged:
    """Return generated sentences as bytes, one item per text, from 15 to 128 bytes long."""
    draw = random.Random(40 + part)  # noqa: S311 - texts, not secrets
    texts = (torch.tensor(list(_text(draw).encode()), dtype=torch.int64) for _ in range(count))
    return Ragged(texts).batched("padded", fill=PADDING)


def _text(draw: random.Random) -> str:
    sentences = []
    for _ in range(draw.randint(1, 4)):
        words = [draw.choice(SUBJECTS), draw.choice(VERBS), draw.choice(OBJECTS)]
        if draw.random() < 0.5:
            words.append(draw.choice(TAILS))
        sentences.append(" ".join(words) + ".")
    return " ".join(sentences)[:LONGEST]


class TransformerLayer(nn.Module):
    """Causal attention, then a feed-forward part, each with a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.join_heads = nn.Linear(WIDTH, WIDTH)
        self.feed_norm = nn.LayerNorm(WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(0.1)

    def forward(self, inner: Tensor) -> Tensor:
        """Return the layer's output."""
        rows, length, _ = inner.shape
        parts = self.query_key_value(self.attention_norm(inner)).view(rows, length, 3, HEADS, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        inner = inner + self.dropout(self.join_heads(attended.transpose(1, 2).reshape(rows, length, WIDTH)))
        out: Tensor = inner + self.dropout(self.feed(self.feed_norm(inner)))
        return out


class Transformer(nn.Module):
    """Predicts a score for each possible next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.byte = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(LONGEST, WIDTH)
        self.layers = nn.Sequential(*(TransformerLayer() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def embed(self, texts: Tensor) -> Tensor:
        """Return a vector for each byte and its position."""
        positions = torch.arange(texts.shape[1], device=texts.device)
        embedded: Tensor = self.byte(texts) + self.position(positions)
        return embedded

    def forward(self, texts: Tensor) -> Tensor:
        """Return scores of shape (texts, length, 256)."""
        scores: Tensor = self.head(self.norm(self.layers(self.embed(texts))))
        return scores


def loss(model: nn.Module, batch: Padded) -> Loss:
    """Return the cross entropy of each next byte, summed, with the number of bytes as weight."""
    total, count, _ = _predict(model, batch.values)
    return Loss(total, count)


def metrics(model: nn.Module, batch: Padded) -> dict[str, Loss]:
    """Return loss and accuracy per byte."""
    total, count, correct = _predict(model, batch.values)
    return {"loss": Loss(total, count), "accuracy": Loss(correct, count)}


def _predict(model: nn.Module, batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scores, following = model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()
    total = F.cross_entropy(scores, following, ignore_index=PADDING, reduction="sum")
    counted = following != PADDING
    correct = ((scores.argmax(1) == following) & counted).sum()
    return total, counted.sum(), correct
