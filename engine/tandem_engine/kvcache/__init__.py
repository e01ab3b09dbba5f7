"""Who holds which KV block: block ids only, no tensors."""
