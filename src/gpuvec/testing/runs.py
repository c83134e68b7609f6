"""Runs of compiled environments under random actions: within their spaces, and equal where they have to be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from gpuvec.engine.dialect import fault
from gpuvec.engine.signature import Crowd, signature, widths
from gpuvec.spec import Cooperative, Environment, Single
from gpuvec.testing.differences import bits_apart, differences
from gpuvec.vector.env import VectorEnv


class Run(NamedTuple):
    """T steps of E rows; "..." is empty for a `Single`, and A for a `Cooperative`."""

    actions: Any  # (T, E, ...) or (T, E, ..., K)
    obs: list[Any]  # T + 1 of (E, ..., D)
    states: list[dict[str, Any]]  # T + 1 of {field: (E, ...)}
    reward: list[Any]  # T of (E, ...)
    terminated: list[Any]  # T of (E,)
    truncated: list[Any]
    infos: list[dict[str, Any]]  # T of {name: (E, A)}; of a `Single` none


def random_actions(env: Environment, steps: int, rows: int, seed: int) -> Any:
    """(steps, rows, ...) actions from the action space."""
    shape = (rows,) if isinstance(env, Single) else (rows, env.agents(env.params))
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


def play(env: Environment, num_envs: int, actions: Any, seeds: tuple[int, ...], device: str = "cpu") -> list[Run]:
    """A run for each seed, of the first `num_envs` rows of `actions`.

    Raises:
        AuthoringError: code that cannot be compiled.
    """
    rows = VectorEnv(env, num_envs, device=device, output="numpy", max_episode_steps=limit(len(actions)))
    runs = []
    for seed in seeds:
        run = Run(actions[:, :num_envs], [rows.reset(seed=seed)[0]], [rows.get_state()], [], [], [], [])
        for action in run.actions:
            obs, *result = rows.step(action)
            for kept, new in zip(run[1:], (obs, rows.get_state(), *result), strict=True):
                kept.append(new)
        runs.append(run)
    rows.close()
    return runs


def stepping(env: Environment) -> Any:
    """The function to name when a step goes wrong."""
    return env.step if isinstance(env, Single) else next(filter(callable, env.phases), env.reward)


def observing(env: Environment, k: int) -> Any:
    """The function that gives observation k."""
    if isinstance(env, Single):
        return env.observe
    crowd = signature(env)
    assert isinstance(crowd, Crowd), "a Cooperative has a crowd"
    see, slots = crowd.perception.see, crowd.perception.slots
    return see if k < slots * widths(env, crowd)[0] else crowd.perception.observe


def check_spaces(env: Environment, run: Run) -> str:
    """Raises for observations outside of their space, and for what is not finite.

    Raises:
        AuthoringError: the first of them.
    """
    names = [_name(index) for index in np.ndindex(run.obs[0].shape[:-1])]
    for t, obs in enumerate(run.obs):
        check_observations(env, obs.reshape(len(names), -1), names, t)
        if t > 0:
            check_reward(env, run.reward[t - 1].reshape(-1), names, t)
    return f"{len(run.obs) * len(names):,} observations are finite and within their bounds, all rewards finite"


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
            raise fault(observing(env, k), value + rule.format(low[k], high[k]))


def check_reward(env: Environment, reward: Any, names: Sequence[str], t: int) -> None:
    """Raises unless the (N,) rewards of step t are finite.

    Raises:
        AuthoringError: the first that is not.
    """
    for name, value in zip(names, reward, strict=True):
        if not np.isfinite(value):
            what = f"the reward of {name} in step {t} is {value}: guard divisions, roots and logarithms"
            raise fault(env.step if isinstance(env, Single) else env.reward, what)


def same(env: Environment, run: Run, other: Run, which: str) -> None:
    """Raises unless both runs are equal, bit for bit, in the rows that both have.

    Raises:
        AuthoringError: the first difference.
    """
    n = min(len(run.obs[0]), len(other.obs[0]))
    for t in range(len(run.obs)):
        found = differences(_at(run, t, n), _at(other, t, n), bits_apart)
        if found:
            place, (a, b) = found[0].place(isinstance(env, Cooperative)), found[0][2:]
            what = f"{which} differ: after {t} steps {place} is {a} and {b}; results must depend on nothing but the arguments"
            raise fault(stepping(env) if t else env.reset, what)


def _at(run: Run, t: int, n: int) -> dict[str, Any]:
    """What the first n rows are and return after t steps."""
    arrays = {"observation": run.obs[t]} | {f"state {k}": v for k, v in run.states[t].items()}
    if t:
        arrays |= {k: getattr(run, k)[t - 1] for k in ("reward", "terminated", "truncated")} | run.infos[t - 1]
    return {name: array[:n] for name, array in arrays.items()}
