"""`python -m benchmarks.autoscaling`."""

from benchmarks.autoscaling.cli import main

main()
