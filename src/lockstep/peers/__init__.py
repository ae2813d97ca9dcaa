"""Other trainers on the same recipe: their own loaders, loops and launch, and the same run folder."""
