"""Games of a person: an environment that takes actions from keys, and a server whose page shows it."""
