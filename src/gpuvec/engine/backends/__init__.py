"""Devices: how kernels are compiled, cached on disk and launched on each kind of device."""
