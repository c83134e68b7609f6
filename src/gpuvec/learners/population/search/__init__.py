"""Searches for settings: samples, successive halving, and settings that change while agents learn."""
