"""MyGame, an environment for gpuvec. Importing this package registers "my_game/MyGame-v0"."""

from my_game.env import ENV

__all__ = ["ENV"]
