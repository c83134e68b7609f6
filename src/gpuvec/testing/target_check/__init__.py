"""`gpuvec check`: the same environment on the CPU and on another target, compared after every call."""
