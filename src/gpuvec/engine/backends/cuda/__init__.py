"""Kernels for NVIDIA GPUs: compiled by numba-cuda or NVRTC, launched by the driver."""
