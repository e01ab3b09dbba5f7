"""Kernels of our own for the CPU, in C++: built at install, chosen and called from here."""
