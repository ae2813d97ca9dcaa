"""This process's place in the world: who started it, how it finds the other ranks, which device and threads it uses."""
