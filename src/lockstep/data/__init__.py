"""Samples in an order that depends on the seed and the epoch alone."""
