"""How much of torch DDP's exchange shows: read from DDP's own log, so that nothing is put in its way.

    backward   |== gradients are computed ==========================|
    buckets              |-- first bucket -----|-- second ----------+------------|
                         hidden: behind backward                    | exchange: what is left to wait for

A communication hook could time every bucket, but it would replace DDP's own all-reduce and cost a pass over the
gradients. DDP notes four times in C++ anyway: the start and the end of its computing and of its exchange.

`hidden` counts from the first bucket's start to the last gradient, also where the wire was idle in between: it is
the most that can have been hidden. Waiting for a slower rank cannot be seen from one rank alone and stays in
`exchange`; `Clock.ready` says when this rank had its gradients, and the ranks of a host share that clock.
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
    """Divides the backward of one DDP module into computing and exchange."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        trained = [parameter for parameter in ddp.parameters() if parameter.requires_grad]
        self.sent = sum(parameter.numel() * parameter.element_size() for parameter in trained)
        """Bytes of gradients in all buckets."""
        # On an accelerator the log is of events there, and the host's laps are of launches: nothing to divide.
        self._on_cpu = all(parameter.device.type == "cpu" for parameter in trained)
        self._ddp, self._asked = ddp, False

    def book(self, clock: Clock) -> None:
        """Divide the last lap, a backward that reduced over the ranks."""
        if not self._on_cpu or isinstance(clock, NoClock):
            return
        log = ddp_log(self._ddp, every_step=not self._asked)
        self._asked = True
        clock.move_tail("exchange", log["backward_comm_time"] * NANO - log["backward_compute_comm_overlap_time"] * NANO)
        clock.hidden = log["backward_compute_comm_overlap_time"] * NANO
        clock.ready = log["backward_compute_time_end"] * NANO
