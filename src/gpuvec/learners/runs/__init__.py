"""The folder of a training run, with its settings, metrics and checkpoints."""
