"""W8A8: its arithmetic, and how checkpoints on disk say that they are quantised."""
