"""The decoder-only transformer: its shapes, its parameters and its forward pass."""
