"""Python functions as compiled functions for any backend: float32 literals, memory operations, errors in plain words."""
