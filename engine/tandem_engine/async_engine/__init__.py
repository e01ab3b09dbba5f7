"""The asynchronous engine: a thread that steps it, streams that asyncio code reads."""
