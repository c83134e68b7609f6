"""The command `gpuvec envs`."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import gymnasium as gym
import tyro

from gpuvec.cli.text_table import print_table
from gpuvec.learners.runs.trusted_code import search_working_folder
from gpuvec.registration import VECTOR_ENTRY_POINT, load_env


def envs(modules: Annotated[tuple[str, ...], tyro.conf.Positional] = ()) -> int:
    """List the registered environments: spaces, step limit, the return at which each counts as solved, and parameters.

    Args:
        modules: Python modules that register environments. They are imported first.
    """
    for module in modules:
        search_working_folder()
        importlib.import_module(module)
    rows = [("id", "observation", "action", "max steps", "threshold", "parameters")]
    for spec in sorted((s for s in gym.registry.values() if s.vector_entry_point == VECTOR_ENTRY_POINT), key=lambda s: s.id):
        env = load_env(spec.kwargs["env"])
        params = env.params._replace(**{k: v for k, v in spec.kwargs.items() if k in env.params._fields})
        spaces: Any = env.spaces(params)
        observation, action = (
            {role: pair[k] for role, pair in spaces.items()} if isinstance(spaces, dict) else spaces[k] for k in range(2)
        )
        rows.append(
            (
                spec.id,
                _format_space(observation),
                _format_space(action),
                "none" if spec.max_episode_steps is None else str(spec.max_episode_steps),
                "none" if spec.reward_threshold is None else f"{spec.reward_threshold:g}",
                " ".join(f"{name}={_format_number(value)}" for name, value in params._asdict().items()),
            )
        )
    print_table(rows)
    return 0


def _format_space(space: Any) -> str:
    """The text of a space, or of a dict of spaces by role."""
    if isinstance(space, dict):
        return ", ".join(f"{role} {_format_space(part)}" for role, part in space.items())
    if isinstance(space, gym.spaces.Discrete):
        return f"Discrete({space.n})"
    if isinstance(space, gym.spaces.MultiDiscrete):
        return f"MultiDiscrete({space.nvec.tolist()})"
    return f"Box{space.shape}".replace(",)", ")")


def _format_number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
