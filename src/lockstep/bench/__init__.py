"""The tables: ours beside the stock parts, from one interleaved run."""
