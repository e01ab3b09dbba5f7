"""Ascend NPUs by torch_npu; run without a card so far (docs/guides/npu.md)."""
