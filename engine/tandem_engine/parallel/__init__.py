"""A replica of several ranks: what they compute, and how they exchange tensors."""
