"""Entry point."""

from benchmarks.speculation.cli import main

main()
