"""Times of each kernel of the engine, and of a whole step: native beside the reference."""
