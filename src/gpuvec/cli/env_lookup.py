"""Imports the module of the environment that a command line names."""

from __future__ import annotations

import gymnasium as gym

from gpuvec.cli.terminal import print_lines
from gpuvec.learners.algorithms import ALL
from gpuvec.learners.runs.trusted_code import import_named_module, search_working_folder, signing_problem
from gpuvec.registration import find_env_spec


def find_own_env(env_id: str) -> gym.envs.registration.EnvSpec:
    """The spec of the environment that the user's command line names.

    Its module is imported. If what the user trains with it will need --trust all the same, this is printed.

    Args:
        env_id: the id of the environment, "module:id" or "id".

    Raises:
        ValueError, gymnasium.error.Error, ModuleNotFoundError: as `find_env_spec`.
    """
    if ":" in env_id:
        search_working_folder()
    spec = find_env_spec(env_id)
    if problem := signing_problem({ALL: {"env": env_id}}):
        print_lines(f"trust      {problem}")
    return spec


def import_own_module(name: str, setting: str) -> None:
    """Imports the module of the algorithm or the network that the user's command line names, as `find_own_env` does.

    Args:
        name: "module:object".
        setting: "algorithm" or "network".

    Raises:
        ValueError: there is no such module.
    """
    search_working_folder()
    import_named_module(name, f"--{setting}")
    if problem := signing_problem({ALL: {setting: name}}):
        print_lines(f"trust      {problem}")
