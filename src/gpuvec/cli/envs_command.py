"""The command `gpuvec envs`."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterator
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import tyro

from gpuvec.cli.env_lookup import NAMESPACE, complete_env_id, env_ids
from gpuvec.cli.terminal import fitted_table, print_lines, terminal_width
from gpuvec.learners.runs.trusted_code import module_file, search_working_folder
from gpuvec.policies import policy_names
from gpuvec.registration import find_env_spec, load_env
from gpuvec.spec import MultiAgentEnv

TEXT_WIDTH = 100  # columns of running text, where the terminal is wider
MAX_COMPONENTS = 4  # of an action that are written one by one


def envs(names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()) -> int:
    """List the registered environments: spaces, step limit, and the return at which each counts as solved.

    With the names of environments, describe these: rules, spaces, parameters and thresholds.

    Args:
        names: environments, such as CartPole-v1 or module:id, or Python modules that register environments, which are imported
            before the list.
    """
    ids = []
    for name in names:
        if all(map(str.isidentifier, name.split("."))):  # it could be a module
            search_working_folder()
        if module_file(name) is not None:
            importlib.import_module(name)
        else:
            ids.append(complete_env_id(name, "envs"))
    for k, id in enumerate(ids):
        print_lines(*([""] if k else []), *describe_env(id))
    if not ids:
        print_lines(*list_envs(terminal_width()))
    return 0


def list_envs(width: int) -> list[str]:
    """Returns the lines of the table of all environments."""
    rows = [("environment", "observation", "action", "steps", "solved")]
    for id in env_ids():
        spec = gym.registry[id]
        env, params = declaration(spec)
        spaces: Any = env.spaces(params)
        observation, action = (
            {role: pair[k] for role, pair in spaces.items()} if isinstance(spaces, dict) else spaces[k] for k in range(2)
        )
        rows.append((id.removeprefix(NAMESPACE), _format_space(observation), _format_space(action), *_limits(spec)))
    hint = (
        "`gpuvec envs NAME` shows the rules, spaces, parameters and thresholds of one of them. In Python the ids of those "
        f"without a namespace begin with {NAMESPACE}, such as {NAMESPACE}CartPole-v1."
    )
    return [*fitted_table(rows, width), "", *textwrap.wrap(hint, width)]


def declaration(spec: gym.envs.registration.EnvSpec) -> tuple[Any, Any]:
    """Returns an environment and its parameters, with those of its registration."""
    env = load_env(spec.kwargs["env"])
    return env, env.params._replace(**{k: v for k, v in spec.kwargs.items() if k in env.params._fields})


def describe_env(env_id: str) -> Iterator[str]:
    """Yields the lines that describe an environment.

    Args:
        env_id: "id" or "module:id".
    """
    spec = find_env_spec(env_id)
    env, params = declaration(spec)
    width = min(terminal_width(), TEXT_WIDTH)
    yield spec.id
    docstring = sys.modules[spec.kwargs["env"].partition(":")[0]].__doc__ or ""
    for paragraph in re.sub(r"\n +", " ", inspect.cleandoc(docstring)).splitlines():
        yield from textwrap.wrap(paragraph, width, subsequent_indent="    ", break_long_words=False) or [""]
    yield ""
    spaces: Any = env.spaces(params)
    counts = env.roles(params) if isinstance(env, MultiAgentEnv) and env.roles else {}
    if isinstance(spaces, dict):
        by_owner = {f"{counts[role]} {role}" if role in counts else role: pair for role, pair in spaces.items()}
    else:
        agents = ", ".join(f"{count} {role}" for role, count in counts.items())
        if isinstance(env, MultiAgentEnv):
            agents = f"each of {env.agents(params)} agents" + (f" ({agents})" if agents else "")
        by_owner = {agents or "one agent": spaces}
    space_rows = [(owner, _bounds(observation), _bounds(action)) for owner, (observation, action) in by_owner.items()]
    yield from fitted_table([("spaces", "observation", "action"), *space_rows], terminal_width())
    yield ""
    comments = comments_of(type(params))
    rows = [
        (name, f"{value:.6g}" if isinstance(value, float) else str(value), comments.get(name, ""))
        for name, value in params._asdict().items()
    ]
    yield from fitted_table([("parameter", "default", ""), *rows], terminal_width())
    yield ""
    max_steps, threshold = _limits(spec)
    yield f"steps      {max_steps}" + (" at most in an episode" if max_steps != "none" else ": episodes have no limit")
    yield f"solved at  {threshold}" + (" (mean return, with these parameters)" if threshold != "none" else "")
    name = spec.id.removeprefix(NAMESPACE)
    yield f"train      gpuvec train {env_id.removeprefix(NAMESPACE)}"
    for policy in policy_names():
        if policy == name or policy.startswith(f"{name}-"):
            yield f"watch      gpuvec demo {policy}"


def _bounds(space: Any) -> str:
    """The text of a space, with the bounds of a box where all components have the same."""
    text = _format_space(space)
    if not isinstance(space, gym.spaces.Box):
        return text
    low, high = set(space.low.ravel().tolist()), set(space.high.ravel().tolist())
    return f"{text} from {min(low):.4g} to {max(high):.4g}" if len(low) == len(high) == 1 and -np.inf not in low else text


def _limits(spec: gym.envs.registration.EnvSpec) -> tuple[str, str]:
    """The step limit and the threshold of an environment, as text."""
    return (
        "none" if spec.max_episode_steps is None else str(spec.max_episode_steps),
        "none" if spec.reward_threshold is None else f"{spec.reward_threshold:g}",
    )


def comments_of(kind: type[Any]) -> dict[str, str]:
    """Returns {field: the comment behind it, "" without one} of a NamedTuple class, in the order of its fields.

    Args:
        kind: the class; without source text, as in a session, there are no comments.
    """
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):
        return {}
    words = {t.start[0]: t.string for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT}
    (declared,) = ast.parse(source).body
    assert isinstance(declared, ast.ClassDef), "the source of a class"
    return {
        field.target.id: words.get(field.end_lineno or 0, "").removeprefix("#").strip()
        for field in declared.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def _format_space(space: Any) -> str:
    """The text of a space, or of a dict of spaces by role, in which only roles are separated by spaces."""
    if isinstance(space, dict):
        return ", ".join(f"{role} {_format_space(part)}" for role, part in space.items())
    if isinstance(space, gym.spaces.Discrete):
        return f"Discrete({space.n})"
    if isinstance(space, gym.spaces.MultiDiscrete):
        sizes = space.nvec.tolist()
        if len(sizes) > MAX_COMPONENTS:
            ranges = str(sizes[0]) if len(set(sizes)) == 1 else f"{min(sizes)}..{max(sizes)}"
            return f"MultiDiscrete({len(sizes)}x{ranges})"
        return f"MultiDiscrete({','.join(map(str, sizes))})"
    return f"Box({','.join(map(str, space.shape))})"
