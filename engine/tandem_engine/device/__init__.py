"""The door to the device: streams, events, memory and kernels of one backend."""
