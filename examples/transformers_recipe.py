"""A Hugging Face transformers model, made from a config: `lockstep compare transformers_recipe.py --workers 2`.

Nothing is downloaded: a small GPT-2 with random weights learns to count. For a model of yours, load it in `make_model`.
"""

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel

from lockstep import Loss, Recipe

WORDS, LENGTH, PADDING = 64, 24, 0


class Counting(Dataset[dict[str, Tensor]]):
    """Sequences of different lengths that count up from some number."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        length = 8 + index % (LENGTH - 8)
        tokens = (index + torch.arange(LENGTH)) % (WORDS - 1) + 1
        tokens[length:] = PADDING
        return {"input_ids": tokens, "attention_mask": (tokens != PADDING).long()}


def make_model() -> nn.Module:
    """Return a GPT-2 of two layers; dropout, tied embeddings and all."""
    config = GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, use_cache=False)
    model: nn.Module = GPT2LMHeadModel(config)
    return model


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Loss:
    """Return a sum over tokens and their number: right for padded sequences, where a mean of means is not."""
    scores = model(**batch).logits[:, :-1]
    targets = batch["input_ids"][:, 1:]
    total = nn.functional.cross_entropy(scores.transpose(1, 2), targets, ignore_index=PADDING, reduction="sum")
    return Loss(total, (targets != PADDING).sum())


def recipe() -> Recipe:
    """Say what is trained."""
    return Recipe(
        model=make_model,
        data=Counting,
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        global_batch=32,
        lanes=4,
    )
