"""Compiled environments under random actions, and what their results show."""
