"""The commands that a user of a Kubernetes adds to `tandem`."""
