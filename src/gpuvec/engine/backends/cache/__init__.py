"""Compiled kernels on disk: the key that says what a kernel was made from, and the store."""
