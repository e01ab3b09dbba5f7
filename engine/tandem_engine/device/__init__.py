"""The interface of a device: streams, events, memory and kernels of one backend."""
