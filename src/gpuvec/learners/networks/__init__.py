"""Policies and value functions: bodies, what lies between them and the spaces, distributions of actions."""
