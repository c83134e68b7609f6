"""Trainings in PyTorch Lightning, which the extra `lightning` installs; importing this package does not import it."""
