"""Compiled kernels on disk: `key` computes the hash of what a kernel is compiled from, `store` reads and writes the files."""
