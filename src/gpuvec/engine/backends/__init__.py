"""Devices: how kernels are compiled, cached on disk and launched on each kind of device.

The argument `backend` of `VectorEnv` is another thing: the language of the author's functions, Python or CUDA C++.
"""
