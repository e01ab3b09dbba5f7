"""A service on this machine: its Ray, its supervisor, its record, its ports."""
