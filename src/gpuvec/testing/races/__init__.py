"""Checks for races between the agents of a `MultiAgentEnv`."""
