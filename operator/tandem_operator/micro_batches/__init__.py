"""`status.microBatch`: what micro-batches bring and cost, as the replicas show it themselves."""
