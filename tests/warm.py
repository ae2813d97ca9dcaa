"""Imported once by the process that ranks are forked from; must start no thread."""

import torch._dynamo  # noqa: F401 - torch.optim imports it at the first step, for a second in each rank

import lockstep.comm.arena
import lockstep.comm.shm
import lockstep.nn
import lockstep.strategies.ddp.strategy
import lockstep.strategies.torch_ddp.strategy
import lockstep.train.loop
import lockstep.train.preflight  # noqa: F401
