"""A model whose weights are divided over workers: which belong together, how they come and go, how gradients add up."""
