"""Running a comparison: the same recipe every way, repeats interleaved, one row each."""
