"""Imported by the fork server after everything else: what its start and the imports left is taken away."""

import signal

from lockstep.torch_compat.startup import drop_empty_compiler_cache

drop_empty_compiler_cache()
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # it is ignored: see ctrl_c_later in spawn.py
