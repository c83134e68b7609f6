"""An environment's functions in CUDA C++: how they are found in the author's file, compiled, and called by kernels."""
