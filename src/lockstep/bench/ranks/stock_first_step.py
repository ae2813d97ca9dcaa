"""The opponent of `lockstep bench start`: a stock script that takes the same first step under torchrun."""

import json
import time

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from lockstep.recipes.mlp import SAMPLES, make_data, make_model


def main() -> None:
    """Take one step and say when it was done."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(make_model(), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    points, labels = make_data(SAMPLES, part=0).tensors
    chosen = torch.arange(32) + 32 * dist.get_rank()
    torch.autograd.backward(cross_entropy(model(points[chosen]), labels[chosen]))
    optimizer.step()
    if dist.get_rank() == 0:
        print(json.dumps({"time": time.time()}), flush=True)  # noqa: T201 - its result
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
