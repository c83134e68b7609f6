"""What the next iteration of each agent depends on: parameters, moments, settings and environments."""
