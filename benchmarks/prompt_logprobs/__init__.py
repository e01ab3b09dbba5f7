"""The cost of a prompt's log-probabilities: time, memory, and what a stream beside it notices."""
