"""From steps to tensors to tokens: the only package of the engine that knows all three."""
