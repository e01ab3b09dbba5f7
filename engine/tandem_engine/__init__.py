"""The engine of Tandem: paged KV cache, iteration-level scheduling, SplitFuse."""
