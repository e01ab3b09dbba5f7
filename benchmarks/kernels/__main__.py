"""`python -m benchmarks.kernels`."""

from benchmarks.kernels.cli import main

main()
