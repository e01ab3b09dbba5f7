"""`python -m benchmarks.serving`."""

from benchmarks.serving.cli import main

main()
