"""Plays episodes without learning."""
