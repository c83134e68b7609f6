"""Rollouts and transitions on the device, and whether they fit into its memory."""
