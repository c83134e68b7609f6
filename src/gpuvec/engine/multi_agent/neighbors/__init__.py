"""The search for nearest neighbors: each agent visits all others, or those in nearby cells of a list (design/0020)."""
