"""The author's functions in plain Python, with every index, integer, draw and key checked."""
