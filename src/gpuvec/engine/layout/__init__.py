"""The buffers of an environment: which there are, what they hold, and how parameters, actions and random streams are read."""
