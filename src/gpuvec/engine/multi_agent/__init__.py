"""Environments with many agents: phases, reductions, observations, and the barriers between them."""
