"""Beam search: the search itself, and what its moves do to queues and KV blocks."""
