"""Checkpoints on disk: what they hold, and how it reaches the memory of a model."""
