"""PPO of small multilayer perceptrons in a few CUDA C++ kernels that keep activations on the chip."""
