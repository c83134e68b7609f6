"""The engine: composes an environment's functions into kernels for the CPU and for CUDA, from one source.

The rest of the package uses `simulation`. `layout` describes the buffers of an environment, `single_agent` and `multi_agent`
compose a reset and a step, `compiler` turns Python functions into compiled ones, and `backends` compiles and launches the
kernels of each kind of device.
"""
