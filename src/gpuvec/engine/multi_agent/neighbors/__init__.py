"""The search for the nearest neighbors of each agent, among all agents or in nearby cells of a list (design/0020)."""
