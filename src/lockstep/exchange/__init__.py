"""How partial sums meet: the exact reduction over threads, an arena, an arena per host, or collectives."""
