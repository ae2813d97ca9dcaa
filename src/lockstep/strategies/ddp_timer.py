"""How much of torch DDP's exchange is not hidden behind backward, read from DDP's own log, which slows nothing down.

    backward   |== gradients are computed ==========================|
    buckets              |-- first bucket -----|-- second ----------+------------|
                         hidden: overlaps with backward             | exchange: the wait after backward

A communication hook could time every bucket, but it would replace DDP's own all-reduce and cost a pass over the
gradients. DDP records four times in C++ anyway: start and end of its computation and of its communication.

`hidden` counts from the first bucket's start to the last gradient, even if nothing was sent in between: it is an upper
bound. One rank alone cannot know how long it waited for a slower rank, so that time stays in `exchange`; `Clock.ready`
says when this rank had its gradients, and the ranks of a host share that clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.strategies.clock import NoClock
from lockstep.torch_compat.modules import ddp_log

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

    from lockstep.strategies.clock import Clock

NANO = 1e-9


class DDPTimer:
    """Divides the backward of one DDP module into computation and exchange."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        trained = [parameter for parameter in ddp.parameters() if parameter.requires_grad]
        self.sent = sum(parameter.numel() * parameter.element_size() for parameter in trained)
        """Bytes of gradients in all buckets."""
        # On an accelerator the lap is not known yet: the exchange that DDP hides behind backward stays a part of that.
        self._on_cpu = all(parameter.device.type == "cpu" for parameter in trained)
        self._ddp, self._log_enabled = ddp, False

    def divide(self, clock: Clock) -> None:
        """Divide the last lap, a backward that reduced over the ranks."""
        if not self._on_cpu or isinstance(clock, NoClock):
            return
        log = ddp_log(self._ddp, every_step=not self._log_enabled)
        self._log_enabled = True
        clock.move_tail("exchange", log["backward_comm_time"] * NANO - log["backward_compute_comm_overlap_time"] * NANO)
        clock.hidden = log["backward_compute_comm_overlap_time"] * NANO
        clock.ready = log["backward_compute_time_end"] * NANO
