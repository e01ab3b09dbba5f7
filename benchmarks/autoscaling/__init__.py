"""Controllers of the number of replicas under a virtual clock: `python -m benchmarks.autoscaling`.

`loads` makes the loads, `controllers` knows the controllers by name, `replicas` makes replicas, and
`session` runs each controller on each load in a fleet of `tandem_engine.simulate`.
docs/benchmarks/autoscaling.md explains the figures.
"""
