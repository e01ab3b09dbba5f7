"""Steps to tensors to tokens: the only place of the engine where the three meet."""
