"""Kernels for the CPU: loops over envs, compiled to machine code, whose rows are distributed over threads."""
