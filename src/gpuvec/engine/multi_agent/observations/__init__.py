"""The observations of many agents: features that are stored directly, or rows assembled in shared memory (design/0011).

A row has the first feature of all M neighbors, the second of all M, and so on, and then the agent's own features. The features
of one neighbor are M elements apart, so on a GPU rows are assembled in shared memory and stored in aligned pieces of 16 bytes.
"""
