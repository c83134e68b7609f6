"""The engine: composes an environment's functions into kernels for the CPU and for CUDA, from one source."""
