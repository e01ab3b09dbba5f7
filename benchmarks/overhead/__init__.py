"""What a step costs beside its forward pass: where the time of the engine's thread goes."""
