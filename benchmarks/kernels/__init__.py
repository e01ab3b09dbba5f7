"""What each kernel of the engine takes, and a whole step: native beside the reference."""
