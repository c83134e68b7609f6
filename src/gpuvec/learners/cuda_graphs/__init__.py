"""CUDA graphs of a learner: capture, state and optimiser with fixed addresses, finite checks, and asynchronous reads."""
