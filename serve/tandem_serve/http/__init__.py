"""The OpenAI-compatible HTTP interface: it parses, admits, hands to the engine and streams back.

It knows FastAPI and the engine's api, nothing of Ray, Kubernetes or the inside of the engine.
"""
