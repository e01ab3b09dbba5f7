"""The OpenAI-compatible HTTP interface: parse, admit, submit to the engine, stream back.

It knows FastAPI and the engine's api, nothing of Ray, Kubernetes or the inside of the engine.
"""
