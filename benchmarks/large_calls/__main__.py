"""`python -m benchmarks.large_calls`."""

from benchmarks.large_calls.cli import main

main()
