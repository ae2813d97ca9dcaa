"""What holds for a comparison where nothing is said; together, two minutes are enough."""

STEPS = 40
"""Of a run, at most."""
REPEATS = 3
"""How often each way is run."""
SECONDS = 100.0
"""The time limit."""
