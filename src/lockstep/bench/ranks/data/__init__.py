"""What `lockstep bench data` measures: in programs of its own, in their ranks, and in the process of the command."""
