"""A replica of several ranks: which of them holds and computes what."""
