"""Runs compiled environments with random actions, and checks the results."""
