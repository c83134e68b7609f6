"""A population that is trained by torch operations over all agents."""
