"""Environments with one agent: a step, a rollout of many steps, and the policies that act in a rollout."""
