"""Admission of requests: API keys, slots, memory and time of bodies, deadlines."""
