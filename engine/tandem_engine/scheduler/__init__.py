"""Which tokens are computed in the next step: pure decisions over counts and block ids."""
