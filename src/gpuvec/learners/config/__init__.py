"""Settings of the algorithms, and those tuned for an environment; importing them imports no torch."""
