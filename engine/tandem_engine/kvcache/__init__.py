"""The holders of KV blocks: block ids only, no tensors."""
