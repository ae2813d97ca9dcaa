"""A script that knows nothing of Lockstep: stock torch.distributed by env://."""

import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
if "--fail" in sys.argv and dist.get_rank() == 1:
    sys.exit(3)
dist.barrier()
print(
    f"rank {dist.get_rank()} of {dist.get_world_size()} local {os.environ['LOCAL_RANK']} sum {total.item():g} "
    f"threads {torch.get_num_threads()}",
    flush=True,
)
dist.destroy_process_group()
