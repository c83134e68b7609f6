"""PPO for small perceptrons in a few kernels of CUDA C++, which keep activations on the chip."""
