"""The results of a population: its numbers, its policies and its folder."""
