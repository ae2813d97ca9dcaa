"""Clusters: what a site has, batch files that fit it, and how jobs do. Nothing here imports torch."""
