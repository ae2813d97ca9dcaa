"""`torch-fsdp`: PyTorch's fully_shard (FSDP2) with its best documented settings, for comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from lockstep.errors import BadInput
from lockstep.state.holdings import Holding, state_name, whole
from lockstep.strategies.base import How, Training
from lockstep.strategies.load_state import SCALARS, load_plain
from lockstep.strategies.stock_step import StockStrategy
from lockstep.strategies.torch_fsdp.fsdp_blocks import check_parameters, find_blocks, first_row
from lockstep.torch_compat.distributed import averages

if TYPE_CHECKING:
    from lockstep.mesh import Mesh


class TorchFSDP(StockStrategy):
    """Blocks are gathered just before use, in forward and again in backward, and freed after; see `fsdp_blocks.py`.

    Lanes before the last add up their gradients without communication, as torch's documentation has it: a rank then
    holds the whole gradient, until the last lane's backward reduces it to the rank's own rows.
    """

    def __init__(self, mesh: Mesh, training: Training) -> None:
        world, model = mesh.world, training.model
        check_parameters(model)
        over = init_device_mesh(torch.device(world.device).type, (world.size,))
        try:
            self._blocks = [fully_shard(block, mesh=over) for block in find_blocks(model)]
            self._root = fully_shard(model, mesh=over)
        except (ValueError, NotImplementedError) as error:
            raise BadInput(f"strategy torch-fsdp: torch's fully_shard refuses this model: {error}") from error
        if not averages(world.device):
            for module in (*self._blocks, self._root):
                module.set_force_sum_reduction_for_comms(True)
        super().__init__(mesh, training, model)

    def how(self) -> How:
        """Return how PyTorch exchanges gradients and updates weights."""
        return How(
            exchange=f"torch FSDP2 over {self.world.backend}, {len(self._blocks)} blocks and the rest",
            optimizer="on slices: every worker updates its rows",
        )

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Let a backward reduce nothing."""
        self._root.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._root.set_requires_gradient_sync(True)

    def prepare_evaluation(self) -> None:
        """Gather all weights: ranks evaluate different numbers of chunks, so no forward may meet the others."""
        self.share_buffers()
        for block in self._blocks:
            block.set_reshard_after_forward(False, recurse=False)
        for module in self._sharded():
            module.unshard()

    def finish_evaluation(self) -> None:
        """Free what other ranks hold."""
        for block in self._blocks:
            block.set_reshard_after_forward(True, recurse=False)
        for module in self._sharded():
            module.reshard()

    def holdings(self) -> list[Holding]:
        """Answer for this rank's rows of every weight and of its optimizer state; rank 0 also for the rest."""
        held: list[Holding] = []
        for name, parameter in self.module.named_parameters():
            held += self._held(f"parameter/{name}", parameter)
            for key, value in self._optimizer.state.get(parameter, {}).items():
                if value is not None:
                    tensor = value if isinstance(value, Tensor) else torch.tensor(value)
                    held += self._held(state_name(name, key), tensor)
        for name, buffer in self.module.named_buffers():
            held += self._held(f"buffer/{name}", buffer)
        return held

    def check_state(self, held: Mapping[str, Mapping[str, tuple[int, ...]]], where: str) -> None:
        """Refuse state that is neither one number nor of its parameter's shape: it cannot be divided by rows."""
        shapes = {name: tuple(parameter.shape) for name, parameter in self.module.named_parameters()}
        for key, owners in held.items():
            for name, shape in owners.items():
                if key not in SCALARS and shape != shapes.get(name, shape):
                    raise BadInput(
                        f"{where} has optimizer state {key!r} that torch-fsdp cannot divide: of {name} it is {shape}, "
                        f"not {shapes[name]}. Load it with the strategy that wrote it"
                    )

    def load(self, pieces: Iterable[tuple[str, Tensor]]) -> None:
        """Keep this rank's rows of a whole state."""
        load_plain(self.module, self._optimizer, ((name, self._rows(name, value)) for name, value in pieces))

    def _sharded(self) -> list[FSDPModule]:
        return [*self._blocks, self._root]

    def _held(self, name: str, tensor: Tensor) -> list[Holding]:
        """Return what this rank answers for of one tensor: rows of it, or all of what is not divided, on rank 0."""
        rank = self.world.rank
        if not isinstance(tensor, DTensor):
            return [whole(name, tensor)] if rank == 0 else []
        local = tensor.to_local().detach().contiguous().reshape(-1)
        if not local.numel() and (tensor.numel() or rank):
            return []
        row = tensor.numel() // max(1, tensor.shape[0])
        start = first_row(tensor.shape[0], self.world.size, rank) * row
        return [Holding(name, tensor.dtype, tuple(tensor.shape), start, (local,))]

    def _rows(self, name: str, value: Tensor) -> Tensor:
        """Return this rank's rows of a parameter, or of state of its shape, as FSDP holds them; else the value."""
        kind, _, rest = name.partition("/")
        owner = rest if kind == "parameter" else rest.rpartition("/")[0]
        if kind == "buffer" or value.shape != self._shape(owner):
            return value
        like = self.module.get_parameter(owner)
        assert isinstance(like, DTensor)
        first = first_row(value.shape[0], self.world.size, self.world.rank)
        own = value[first : first + like.to_local().shape[0]].to(self.world.device).clone()
        return DTensor.from_local(
            own, like.device_mesh, like.placements, run_check=False, shape=value.shape, stride=value.stride()
        )

    def _shape(self, name: str) -> torch.Size:
        parameter: nn.Parameter = self.module.get_parameter(name)
        return parameter.shape
