"""The kernels in plain torch: for any torch device, and the measure for every other backend."""
