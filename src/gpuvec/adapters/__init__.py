"""Adapters to other libraries' interfaces; each module needs the library that it is named after, and nothing imports it."""
