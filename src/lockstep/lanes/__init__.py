"""Lanes: the fixed slices of a global batch, and who computes which."""
