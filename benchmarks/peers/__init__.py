"""Tandem beside OpenVINO GenAI, llama.cpp and vLLM: `python -m benchmarks.peers --help`.

`models` makes the checkpoints and `environments` the peers' interpreters. Every engine runs in a
process of its own (`runners`, which know nothing but the standard library and their engine) and is
asked for rows through `process`; `turns` says in which order. `roofline` and `figures` turn what
was seen into limits, ratios and shares without clock or torch. docs/benchmarks/method.md explains
the figures.
"""
