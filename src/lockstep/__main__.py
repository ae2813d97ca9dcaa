"""`python -m lockstep`, for launchers that start modules."""

from lockstep.cli import main

main()
