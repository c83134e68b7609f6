"""Evaluation of policies, in episodes without learning."""
