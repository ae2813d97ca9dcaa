"""Ranks of one host talk through shared memory: the `shm` backend and the arena."""
