"""A load generator for OpenAI-compatible endpoints: `python -m benchmarks.serving --help`.

`cli` reads what was asked, `plan` turns it into loads, `run` sends them through `client`, and
`statistics` turns what was seen into the figures that `report` and `plot` show. What decides or
computes (`case`, `trace`, `arrivals`, `plan`, `http1`, `reply`, `outcome`, `statistics`) has
neither a clock nor a socket. docs/benchmarks/method.md explains the figures.
"""
