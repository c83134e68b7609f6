"""The half of the engine that is for environments of many agents."""
