"""Where this process stands: who started it, where the ranks meet, what it computes on."""
