"""Logits to tokens, for all rows of a step at once."""
