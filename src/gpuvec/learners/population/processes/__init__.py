"""A population that is trained by several processes on the cores of a CPU."""
