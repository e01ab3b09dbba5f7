"""Benchmarks of a replica of several ranks: a subcommand for each part."""
