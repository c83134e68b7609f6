"""Compilation of Python functions with Numba for every backend: float32 literals, memory operations, error messages."""
