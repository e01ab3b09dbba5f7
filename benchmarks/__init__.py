"""Measurements of Tandem; not part of what is installed."""
