"""The cost of a step beside its forward pass, by part of the engine's thread."""
