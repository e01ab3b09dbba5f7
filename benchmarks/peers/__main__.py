"""`python -m benchmarks.peers`."""

from benchmarks.peers.cli import main

main()
