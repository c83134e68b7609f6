"""Estimates from a rollout: advantages, the scale of rewards, statistics of episodes."""
