"""The communication that micro-batches hide between two ranks, over a link of a known rate."""
