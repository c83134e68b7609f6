"""Sampling of actions: one kernel for action, log-probability and entropy. `action_kernels` needs no torch."""
