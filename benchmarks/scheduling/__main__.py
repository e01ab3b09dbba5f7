"""`python -m benchmarks.scheduling`."""

from benchmarks.scheduling.cli import main

main()
