"""The folder of a training run: settings, metrics, checkpoints."""
