"""One small script an engine, run by that engine's own interpreter.

A runner imports the standard library, `protocol` and its engine, and nothing else of this project,
so that an environment needs no package of ours.
"""
