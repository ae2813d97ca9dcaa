"""Imported by the fork server after everything else: what the imports left is taken away."""

from lockstep.torch_compat.startup import drop_empty_compiler_cache

drop_empty_compiler_cache()
