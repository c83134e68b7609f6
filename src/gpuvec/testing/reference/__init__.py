"""Runs the author's functions in plain Python and checks every index, integer, draw and key."""
