"""Which modules of a model `fully_shard` gathers as one, and which rows of a tensor a rank then holds."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from torch import nn

from lockstep.errors import BadInput

if TYPE_CHECKING:
    from lockstep.strategies.limits import Asked

LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a model, without the model itself: what is in none of them is gathered with the model.

    As torch's documentation does with a transformer, blocks are the items of lists: of the model, if it is one, else of
    its children that are. A model without lists has its children as blocks. A block that shares a parameter with
    another module is left to the model: FSDP shards a parameter once, and would make two of a shared one.
    """
    lists = [model] if isinstance(model, LISTS) else [one for one in model.children() if isinstance(one, LISTS)]
    items = [item for one in lists for item in one.children()] or list(model.children())
    own = [one for one in dict.fromkeys(items) if next(one.parameters(), None) is not None]
    used = Counter(id(parameter) for module in model.modules() for parameter in module.parameters(recurse=False))
    return [one for one in own if not _shares(one, used) and not _is_bare_list(one)]


def _shares(block: nn.Module, used: Counter[int]) -> bool:
    """Say whether a module outside a block has one of its parameters too."""
    inside = Counter(id(parameter) for module in block.modules() for parameter in module.parameters(recurse=False))
    return any(used[parameter] != count for parameter, count in inside.items())


def _is_bare_list(module: nn.Module) -> bool:
    """Say whether a module is a list that cannot be called, which fully_shard refuses."""
    return isinstance(module, nn.ModuleList | nn.ModuleDict)


def first_row(rows: int, workers: int, rank: int) -> int:
    """Return the first of a tensor's rows that a rank holds: FSDP divides them as torch.chunk does."""
    return min(rows, rank * -(-rows // workers))


def limits(asked: Asked) -> None:
    """Refuse a model that fully_shard refuses."""
    check_parameters(asked.recipe.model())


def check_parameters(model: nn.Module) -> None:
    """Refuse a parameter without a dimension: there is nothing to divide."""
    for name, parameter in model.named_parameters():
        if not parameter.dim():
            raise BadInput(
                f"strategy torch-fsdp: torch's fully_shard takes no parameter without a dimension, and {name} is one: "
                "make it a tensor of one element, or use ddp"
            )
