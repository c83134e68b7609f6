"""Devices: how kernels are compiled, kept on disk, and launched on each of them."""
