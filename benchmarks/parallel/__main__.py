"""`python -m benchmarks.parallel`."""

from benchmarks.parallel.cli import main

main()
