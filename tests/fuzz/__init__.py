"""Fuzzing: inputs changed at random, by seeds that never change. Every case succeeds, or is refused on one line."""
