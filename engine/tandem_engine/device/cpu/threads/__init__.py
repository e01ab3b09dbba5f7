"""Compute threads of the CPU backend: number, cores, and the locks by which replicas share them."""
