"""The CPU backend: always there; its kernels are native where a compiler built them."""
