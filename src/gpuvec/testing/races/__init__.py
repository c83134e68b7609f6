"""Reads and writes between the agents of a `MultiAgentEnv`."""
