"""The kernel that trains a population on GPUs from compute capability 8.0 on, an agent with each block."""
