"""Types of the author's compiled functions: parameters, results, and no float64 in between."""
