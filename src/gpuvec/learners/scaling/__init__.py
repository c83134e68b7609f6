"""How many environments, and how long rollouts, make a training fast on a device."""
