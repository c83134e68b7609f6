"""The search for nearest neighbors: by a walk over all agents, or by a list of cells."""
