"""Kernels for the CPU: loops over environments as machine code, shared among threads."""
