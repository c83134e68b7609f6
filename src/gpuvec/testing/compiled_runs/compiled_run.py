"""Runs of compiled environments under random actions: within their spaces, and equal where they have to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from gpuvec.engine.compiler.diagnostics import authoring_error
from gpuvec.engine.layout.schema import MultiAgentSchema, feature_widths, make_schema
from gpuvec.spec import Environment, MultiAgentEnv, SingleAgentEnv
from gpuvec.testing.target_check.differences import bits_apart, differences
from gpuvec.vector.env import VectorEnv


class Run(NamedTuple):
    """T steps of E rows; "..." is empty for a `SingleAgentEnv`, and A for a `MultiAgentEnv`."""

    actions: Any  # (T, E, ...) or (T, E, ..., K)
    obs: list[Any]  # T + 1 of (E, ..., D)
    states: list[dict[str, Any]]  # T + 1 of {field: (E, ...)}
    reward: list[Any]  # T of (E, ...)
    terminated: list[Any]  # T of (E,)
    truncated: list[Any]
    infos: list[dict[str, Any]]  # T of {name: (E, A)}; of a `SingleAgentEnv` none
    limit: int | None = None  # steps after which an episode was truncated


def random_actions(env: Environment, steps: int, rows: int, seed: int) -> Any:
    """(steps, rows, ...) actions from the action space."""
    shape = (rows,) if isinstance(env, SingleAgentEnv) else (rows, env.agents(env.params))
    space = gym.vector.utils.batch_space(env.spaces(env.params)[1], int(np.prod(shape)))
    space.seed(seed)
    sampled = np.stack([space.sample() for _ in range(steps)])
    return sampled.reshape(steps, *shape, *sampled.shape[2:])


def action_of(values: Any) -> Any:
    """One row's or agent's action as an author gets it."""
    return tuple(values.tolist()) if values.ndim else values.item()


def limit(steps: int) -> int:
    """Steps of an episode when that many are played: few, so that each row is reset several times."""
    return max(2, steps // 4)


def step_results(rows: VectorEnv, actions: Any, seed: int) -> Iterator[dict[str, Any]]:
    """What rows are and return after a seeded reset and after each step: {name: (E, ...) array}.

    Names are "observation", "state x" for a field x, and after a step "reward", "terminated", "truncated" and those of infos.
    """
    yield {"observation": rows.reset(seed=seed)[0]} | _states(rows)
    for action in actions:
        obs, reward, terminated, truncated, infos = rows.step(action)
        returned = {"reward": reward, "terminated": terminated, "truncated": truncated}
        yield {"observation": obs} | _states(rows) | returned | infos


def _states(rows: VectorEnv) -> dict[str, Any]:
    return {f"state {name}": array for name, array in rows.get_state().items()}


def as_run(actions: Any, results: Sequence[dict[str, Any]], limit: int | None) -> Run:
    """What `step_results` gave, as a run."""
    steps = results[1:]
    reward, terminated, truncated = ([found[name] for found in steps] for name in ("reward", "terminated", "truncated"))
    states = [{k.removeprefix("state "): v for k, v in found.items() if k.startswith("state ")} for found in results]
    infos = [{k: v for k, v in found.items() if k.startswith("agent_")} for found in steps]
    return Run(actions, [found["observation"] for found in results], states, reward, terminated, truncated, infos, limit)


def play(env: Environment, num_envs: int, actions: Any, seeds: tuple[int, ...], device: str = "cpu") -> list[Run]:
    """A run for each seed, of the first `num_envs` rows of `actions`.

    Raises:
        AuthoringError: code that cannot be compiled.
    """
    longest = limit(len(actions))
    rows = VectorEnv(env, num_envs, device=device, output="numpy", max_episode_steps=longest)
    played = actions[:, :num_envs]
    runs = [as_run(played, list(step_results(rows, played, seed)), longest) for seed in seeds]
    rows.close()
    return runs


def stepping(env: Environment) -> Any:
    """The function to name when a step goes wrong."""
    return env.step if isinstance(env, SingleAgentEnv) else next(filter(callable, env.phases), env.reward)


def observing(env: Environment, k: int) -> Any:
    """The function that gives observation k."""
    if isinstance(env, SingleAgentEnv):
        return env.observe
    schema = make_schema(env)
    assert isinstance(schema, MultiAgentSchema), "a MultiAgentEnv has a schema"
    see, slots = schema.observation.other_features, schema.observation.max_neighbors
    return see if k < slots * feature_widths(env, schema)[0] else schema.observation.self_features


def check_spaces(env: Environment, run: Run) -> str:
    """Raises for observations outside of their space, and for what is not finite.

    Raises:
        AuthoringError: the first of them.
    """
    names = [_name(index) for index in np.ndindex(run.obs[0].shape[:-1])]
    space = env.spaces(env.params)[0]
    for t, obs in enumerate(run.obs):
        if not ((obs >= space.low) & (obs <= space.high) & np.isfinite(obs)).all():
            check_observations(env, obs.reshape(len(names), -1), names, t)
        if t > 0 and not np.isfinite(run.reward[t - 1]).all():
            check_reward(env, run.reward[t - 1].reshape(-1), names, t)
        check_states(env, run, t)
    return f"{len(run.obs) * len(names):,} observations are finite and within their bounds, all rewards and states finite"


def check_states(env: Environment, run: Run, t: int) -> None:
    """Raises unless the floats of all states after t steps are finite.

    Raises:
        AuthoringError: the first that is not.
    """
    for name, values in run.states[t].items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            row, *rest = np.argwhere(~np.isfinite(values))[0].tolist()
            place = name + "".join(f"[{k}]" for k in rest)
            began = t == 0 or bool(run.terminated[t - 2][row] | run.truncated[t - 2][row] if t > 1 else False)
            what = f"after {t} steps {place} of the state of environment {row} is {values[(row, *rest)]}, which is not finite"
            function = env.reset if began else stepping(env)
            raise authoring_error(
                function, f"{what}: guard divisions, roots and logarithms, and mark what is missing by a bool"
            )


def _name(index: tuple[int, ...]) -> str:
    return f"environment {index[0]}" if len(index) == 1 else f"agent {index[1]} of environment {index[0]}"


def check_observations(env: Environment, obs: Any, names: Sequence[str], t: int) -> None:
    """Raises unless (N, D) observations after t steps are finite and within their space; `names` says whose each row is.

    Raises:
        AuthoringError: the first that is not.
    """
    space = env.spaces(env.params)[0]
    low, high = space.low, space.high
    for wrong, rule in (
        (~np.isfinite(obs), "which is not finite: guard divisions, roots and logarithms"),
        ((obs < low) | (obs > high), "outside its space, {:.7g} to {:.7g}: widen the space, or clip"),
    ):
        if wrong.any():
            row, k = np.argwhere(wrong)[0]
            value = f"after {t} steps observation {k} of {names[row]} is {obs[row, k]:.7g}, "
            raise authoring_error(observing(env, k), value + rule.format(low[k], high[k]))


def check_reward(env: Environment, reward: Any, names: Sequence[str], t: int) -> None:
    """Raises unless the (N,) rewards of step t are finite.

    Raises:
        AuthoringError: the first that is not.
    """
    for name, value in zip(names, reward, strict=True):
        if not np.isfinite(value):
            what = f"the reward of {name} in step {t} is {value}: guard divisions, roots and logarithms"
            raise authoring_error(env.step if isinstance(env, SingleAgentEnv) else env.reward, what)


def same(env: Environment, run: Run, other: Run, which: str) -> None:
    """Raises unless both runs are equal, bit for bit, in the rows and steps that both have.

    Raises:
        AuthoringError: the first difference.
    """
    n = min(len(run.obs[0]), len(other.obs[0]))
    for t in range(min(len(run.obs), len(other.obs))):
        same_step(env, t, _at(run, t, n), _at(other, t, n), which)


def same_step(env: Environment, t: int, expected: dict[str, Any], found: dict[str, Any], which: str) -> None:
    """Raises unless what two runs are and return after t steps is equal, bit for bit.

    Raises:
        AuthoringError: the first difference.
    """
    different = differences(expected, found, bits_apart)
    if different:
        place, (a, b) = different[0].place(isinstance(env, MultiAgentEnv)), different[0][2:]
        what = f"{which} differ: after {t} steps {place} is {a} and {b}; results must depend on nothing but the arguments"
        raise authoring_error(stepping(env) if t else env.reset, what)


def _at(run: Run, t: int, n: int) -> dict[str, Any]:
    """What the first n rows are and return after t steps."""
    arrays = {"observation": run.obs[t]} | {f"state {k}": v for k, v in run.states[t].items()}
    if t:
        arrays |= {k: getattr(run, k)[t - 1] for k in ("reward", "terminated", "truncated")} | run.infos[t - 1]
    return {name: array[:n] for name, array in arrays.items()}
