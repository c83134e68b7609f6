"""Checks the types of the parameters, the results and all values of the author's compiled functions."""
