"""Replays of a training that is running: a process that records them, and a server that shows the newest."""
