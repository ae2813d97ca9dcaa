"""Everything of torch that is private or differs between versions: what it is for, and since or until when.

    startup         needed before torch is imported: names of its modules, the flight recorder
    distributed     stores, the default group, the all-gather into one tensor
    process_group   what torch asks of a group and of a Work that are written in Python
    tensors         fused copies, version counters, the end of backward, operators and their arguments
    modules         tables of a module, the base of BatchNorm, DDP's log
    optimizers      state that exists before the first step
    devices         memory on an accelerator
    profiler        memory over time

The rest of lockstep imports these names and no private name of torch; tests/unit/test_torch_compat.py checks that.
What has no version in its docstring is the same in all versions that are known to work. Importing this package does not
import torch: the command line must answer without it.
"""
