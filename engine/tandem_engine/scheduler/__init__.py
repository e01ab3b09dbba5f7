"""The scheduler: pure decisions over counts and block ids on the tokens of the next step."""
