"""Observations of many agents become memory: features stored directly, or rows assembled in shared memory (design/0011).

A row is F blocks of M neighbors, then the agent's own features. Two threads that write neighboring features of a row write to
places M apart, so on a GPU whole rows are assembled in shared memory and leave it in aligned pieces of 16 bytes.
"""
