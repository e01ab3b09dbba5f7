"""Plain data that crosses the engine's doors; pydantic and the standard library only."""
