"""Entry point."""

from benchmarks.overlap.cli import main

main()
