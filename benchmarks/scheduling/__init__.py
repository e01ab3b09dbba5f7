"""The scheduler against the clock: `python -m benchmarks.scheduling --help`.

`simulate` runs the real scheduler under a virtual clock (`tandem_engine.simulate`) and seeks the
highest load that each policy sustains (`workload`, `policies`, `capacity`). `engine` does the same
with a model in this process. `cost` times the scheduler itself. What decides or computes has no
clock. docs/benchmarks/method.md explains the figures.
"""
