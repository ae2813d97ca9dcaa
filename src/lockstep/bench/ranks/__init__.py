"""What the benchmarks run in processes of their own, and how these are started; all of it may import torch."""
