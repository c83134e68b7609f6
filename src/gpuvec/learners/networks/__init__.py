"""Policies and value functions: networks, their connection to an environment's spaces, and distributions of actions."""
