"""`status.speculation`: what became of draft tokens, as the replicas show it themselves."""
