"""Plain data of the engine's interfaces; pydantic and the standard library only."""
