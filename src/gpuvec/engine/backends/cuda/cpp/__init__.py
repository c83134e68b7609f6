"""An environment's functions in CUDA C++: their definitions, their compilation, and the calls by kernels."""
