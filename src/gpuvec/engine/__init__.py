"""The engine: composes an environment's functions into kernels for the CPU and for CUDA, from one source.

`simulation` is what the rest of the package uses. `layout` says which buffers an environment has, `single_agent` and
`multi_agent` compose what happens in a reset and a step, `compiler` makes compiled functions of Python's, and `backends`
compile and launch the kernels of a device.
"""
