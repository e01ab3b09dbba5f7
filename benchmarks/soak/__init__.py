"""A service under load for a long time: `python -m benchmarks.soak --help`.

`traffic` asks, leaves and errs at a steady rate, `session` changes settings live, `replica_stats`
reads memory, file descriptors, threads and KV blocks, `series` says which of them grow, `plot`
draws them. `series` is pure.
"""
