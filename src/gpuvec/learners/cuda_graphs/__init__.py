"""What it takes to stay on the device: graphs, kernels of rows, an optimiser and a state that keep their addresses, a guard."""
