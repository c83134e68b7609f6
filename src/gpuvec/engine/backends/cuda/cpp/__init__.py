"""Functions of environments in CUDA C++: read, compiled, and linked into the kernels that the engine makes."""
