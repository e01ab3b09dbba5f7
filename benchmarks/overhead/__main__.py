"""`python -m benchmarks.overhead`."""

from benchmarks.overhead.cli import main

main()
