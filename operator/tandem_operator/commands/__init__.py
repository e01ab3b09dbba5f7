"""The commands that the operator's extra adds to `tandem`."""
