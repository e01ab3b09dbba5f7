"""The asynchronous front: a thread that steps the engine, streams that asyncio code reads."""
