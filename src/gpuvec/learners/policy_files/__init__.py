"""Trained policies outside of their run: the file format, the object that acts, and the export to other formats."""
