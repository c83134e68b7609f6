"""Shards: equal parts of a training's environments, which one or several processes compute and pool."""
