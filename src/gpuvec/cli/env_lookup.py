"""Imports the module of the environment that a command line names."""

from __future__ import annotations

import gymnasium as gym

from gpuvec.engine.backends.cache.store import remember_file
from gpuvec.learners.runs.trusted_code import module_file, search_working_folder
from gpuvec.registration import find_env_spec


def find_own_env(env_id: str) -> gym.envs.registration.EnvSpec:
    """The spec of the environment that the user's command line names.

    Its module is imported, and remembered: a run that names the same file later needs no --trust, since the user has run this
    file before.

    Args:
        env_id: the id of the environment, "module:id" or "id".

    Raises:
        ValueError, gymnasium.error.Error, ModuleNotFoundError: as `find_env_spec`.
    """
    if ":" in env_id:
        search_working_folder()
    spec = find_env_spec(env_id)
    if (file := module_file(env_id.rpartition(":")[0])) is not None:
        remember_file(file)
    return spec
