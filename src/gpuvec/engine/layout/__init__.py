"""The buffers of a vector environment, and how kernels read parameters, actions and random-number streams from them."""
