"""`status.ranks`: what the ranks of a replica hold, as the replicas show it themselves."""
