"""The kernel that trains a population on Hopper GPUs, an agent with each block."""
