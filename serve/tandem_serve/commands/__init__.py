"""One module for each command of `tandem`."""
