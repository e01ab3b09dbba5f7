"""The parts of a status that say what the replicas show themselves: microBatch and ranks."""
