"""Compiled environments that run with random actions, and all their results.

The checks treat all environments alike: values by role are one array with a row for each agent, padded with zeros if the roles
have spaces of their own. Actions that action masks forbid are replaced, so that checks play as the rules of an environment
allow. A run in a worker process writes its results to files, so that they remain if the process crashes.

Letters: E envs, A agents, n agents of a role, K components of an action, of a role with most components, N elements of a mask.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, takewhile, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.backends.cpu.threads import CpuKernels
from gpuvec.engine.compiler.diagnostics import authoring_error, step_function
from gpuvec.engine.compiler.types import Action
from gpuvec.engine.layout.buffers import NO_STEP_LIMIT
from gpuvec.engine.layout.schema import EnvSchema, MultiAgentSchema
from gpuvec.phases import first_function
from gpuvec.random import Key
from gpuvec.spec import Environment
from gpuvec.testing.target_check.differences import differences, differs_in_bits, make_result_layout
from gpuvec.testing.worker_process import allow_cpu_time
from gpuvec.vector.env import VectorEnv


def join_roles(values: Any, schema: EnvSchema) -> Any:
    """Returns observations or masks by role as one array (..., A, D), with zeros for missing roles and after shorter rows.

    Args:
        values: {role: (E, n, ...)}; an array is returned as it is.
        schema: the schema of the environment.
    """
    if not isinstance(values, Mapping):
        return values
    assert isinstance(schema, MultiAgentSchema), "roles are of many agents"
    first = next(iter(values.values()))
    width = max(math.prod(rows.shape[2:]) for rows in values.values())
    joined = np.zeros((len(first), schema.num_agents, width), np.result_type(*values.values()))
    for role, rows in values.items():
        part = schema.role_schemas[role]
        agents = slice(part.first_agent, part.first_agent + part.num_agents)
        joined[:, agents, : math.prod(rows.shape[2:])] = rows.reshape(*rows.shape[:2], -1)
    return joined


def split_actions(actions: NDArray[Any], schema: EnvSchema) -> Any:
    """Returns actions as an environment takes them: {role: (..., n) or (..., n, K)} if the roles have spaces of their own.

    Args:
        actions: (..., A, K) actions as `random_actions` draws them; those of other environments are returned as they are.
        schema: the schema of the environment.
    """
    if not isinstance(schema, MultiAgentSchema) or not schema.role_schemas:
        return actions
    by_role = {}
    for part in schema.parts:
        rows = actions[..., part.first_agent : part.first_agent + part.num_agents, :]
        rows = rows[..., : part.action.components] if part.action.components else rows[..., 0]
        by_role[part.role] = np.ascontiguousarray(rows, np.int64 if part.action.discrete else np.float32)
    return by_role


class MaskedComponent(NamedTuple):
    """A component of the actions of some agents, and the elements of a mask that belong to it."""

    agents: slice
    component: int
    elements: slice
    first: int  # the smallest action of the component


def masked_components(schema: EnvSchema) -> Iterator[MaskedComponent]:
    """Yields the components of actions that have a mask.

    Args:
        schema: the schema of the environment.
    """
    if not isinstance(schema, MultiAgentSchema):  # An environment with masks has a schema of many agents, or of one of them.
        return
    for part in schema.parts:
        if part.mask_size == 0:
            continue
        space, agents, offset = part.action_space, slice(part.first_agent, part.first_agent + part.num_agents), 0
        sizes = [space.n] if isinstance(space, gym.spaces.Discrete) else space.nvec.tolist()
        for component, (first, size) in enumerate(zip(np.ravel(space.start).tolist(), sizes, strict=True)):
            yield MaskedComponent(agents, component, slice(offset, offset + int(size)), int(first))
            offset += int(size)


def allowed_actions(actions: NDArray[Any], mask: NDArray[np.bool_], schema: EnvSchema) -> NDArray[Any]:
    """Returns a copy of actions in which those that a mask forbids are replaced by allowed ones.

    The replacement depends on the action and the mask alone: of n allowed actions it is number `action % n`. A component
    without an allowed action keeps its value.

    Args:
        actions: (E, ...) or (E, ..., K) actions as `random_actions` draws them.
        mask: (E, ..., N) mask.
        schema: the schema of the environment.
    """
    result = actions.reshape(len(actions), schema.num_agents, -1).copy()
    masks = mask.reshape(len(mask), schema.num_agents, -1)
    for agents, component, elements, first in masked_components(schema):
        is_allowed = masks[:, agents, elements]
        random_element = result[:, agents, component].astype(np.int64) - first
        num_allowed = is_allowed.cumsum(-1)
        count = num_allowed[..., -1]
        replacement = (num_allowed > (random_element % np.maximum(count, 1))[..., None]).argmax(-1)
        keeps = np.take_along_axis(is_allowed, random_element[..., None], -1)[..., 0] | (count == 0)
        result[:, agents, component] = np.where(keeps, random_element, replacement) + first
    return result.reshape(actions.shape)


INFO_NAMES = ("agent_mask", "agent_terminated", "action_mask", "critic_obs")
METRIC = "metric "  # precedes the name of a metric among the results of a step


class CompiledRun(NamedTuple):
    """The results of T steps of E environments; "..." in a shape is A for a `MultiAgentEnv`, else nothing."""

    actions: NDArray[Any]  # (T, E, ...) or (T, E, ..., K)
    obs: list[NDArray[np.float32]]  # T + 1 of (E, ..., D)
    states: list[dict[str, NDArray[Any]]]  # T + 1 of {field: (E, ...)}
    reward: list[NDArray[np.float32]]  # T of (E, ...)
    terminated: list[NDArray[np.bool_]]  # T of (E,)
    truncated: list[NDArray[np.bool_]]  # T of (E,)
    infos: list[dict[str, NDArray[Any]]]  # T of {name: (E, A) or (E, ..., N)}, the names of `INFO_NAMES` that the infos have
    masks: list[NDArray[np.bool_]]  # T + 1 of (E, ..., N), or none without action masks
    limit: int | None = None  # the number of steps after which an episode was truncated


def random_actions(env: Environment, schema: EnvSchema, steps: int, num_envs: int, seed: int) -> NDArray[Any]:
    """Draws (T, E, ...) or (T, E, ..., K) actions from the action space.

    Args:
        env: the environment.
        schema: its schema.
        steps: the number of steps, T.
        num_envs: the number of environments, E.
        seed: the seed of the action space.

    Returns:
        The actions. If spaces are by role they are (T, E, A, K) with K of the role with most components, int64 or float64, and
        `split_actions` returns those of each role.
    """
    parts = schema.parts if isinstance(schema, MultiAgentSchema) else ()
    groups = [(part.action_space, part.num_agents) for part in parts] or [(env.spaces(env.params)[1], 1)]
    samples = []
    for number, (action_space, num_agents) in enumerate(groups):
        space = gym.vector.utils.batch_space(action_space, num_envs * num_agents)
        space.seed(seed + number)
        samples.append(np.stack([space.sample() for _ in range(steps)]))
    if not isinstance(schema, MultiAgentSchema) or not schema.role_schemas:
        return samples[0].reshape(steps, num_envs, *schema.agents_shape, *samples[0].shape[2:])
    rows = [x.reshape(steps, num_envs, num_agents, -1) for x, (_, num_agents) in zip(samples, groups, strict=True)]
    width = max(x.shape[-1] for x in rows)
    dtype = np.int64 if all(part.action.discrete for part in parts) else np.float64
    return np.concatenate([np.pad(x, [(0, 0)] * 3 + [(0, width - x.shape[-1])]) for x in rows], 2).astype(dtype)


def author_actions(schema: EnvSchema, values: NDArray[Any]) -> list[Action]:
    """Converts the actions of all agents of an env to arguments of author functions.

    Args:
        schema: the schema of the environment.
        values: (A,) or (A, K) actions as `random_actions` draws them; without A for a `SingleAgentEnv`.
    """
    if not isinstance(schema, MultiAgentSchema) or not schema.role_schemas:
        rows = values if schema.agents_shape else (values,)
        return [tuple(row.tolist()) if row.ndim else row.item() for row in rows]
    actions: list[Action] = []
    for part in schema.parts:
        layout = part.action
        for row in values[part.first_agent : part.first_agent + part.num_agents, : max(1, layout.components)].tolist():
            numbers = [int(x) if layout.discrete else float(np.float32(x)) for x in row]
            actions.append(tuple(numbers) if layout.components else numbers[0])
    return actions


def short_episode_steps(steps: int) -> int:
    """The step limit with which each environment is reset several times in a run.

    Args:
        steps: the number of steps of the run, T.
    """
    return max(2, steps // 4)


def step_results(envs: VectorEnv, actions: NDArray[Any], seed: int) -> Iterator[dict[str, NDArray[Any]]]:
    """Yields the results of a seeded reset and of each step as {name: (E, ...) array}.

    The names are "observation", "state x" for each field x, the names of the infos, and after a step "reward", "terminated" and
    "truncated".

    Args:
        envs: E environments with outputs in NumPy.
        actions: (T, E, ...) or (T, E, ..., K) actions; those that the action mask forbids are replaced in the array before
            each step.
        seed: the seed of the reset.
    """
    schema, step_values = envs.simulation.schema, dict[str, Any]()
    obs, infos = envs.reset(seed=seed)
    for action in (None, *actions):
        if action is not None:
            if "action_mask" in infos:
                action[...] = allowed_actions(action, join_roles(infos["action_mask"], schema), schema)
            obs, reward, terminated, truncated, infos = envs.step(split_actions(action, schema))
            step_values = {"reward": reward, "terminated": terminated, "truncated": truncated}
        states = {f"state {name}": array for name, array in envs.get_state().items()}
        yield {"observation": join_roles(obs, schema)} | states | step_values | flat_infos(infos, schema)


def flat_infos(infos: Mapping[str, Any], schema: EnvSchema) -> dict[str, NDArray[Any]]:
    """Returns {name: array} of infos, in which metrics have names such as "metric grass", and masks by role are one array.

    Args:
        infos: those of a step.
        schema: the schema of the environment.
    """
    if "action_mask" in infos:
        infos = {**infos, "action_mask": join_roles(infos["action_mask"], schema)}
    metrics = {METRIC + name: values for name, values in infos.get("metrics", {}).items()}
    return {name: values for name, values in infos.items() if name != "metrics"} | metrics


def metrics_of(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns {name: array} of the metrics among results whose names are those of `flat_infos`.

    Args:
        results: {name: array} of a step.
    """
    return {name.removeprefix(METRIC): values for name, values in results.items() if name.startswith(METRIC)}


def make_run(actions: NDArray[Any], results: Sequence[dict[str, NDArray[Any]]], limit: int | None) -> CompiledRun:
    """Assembles a run from results.

    Args:
        actions: (T, E, ...) or (T, E, ..., K) actions.
        results: what `step_results` yielded, or the first part of it if the run ended early.
        limit: the number of steps after which an episode was truncated; None for no limit.
    """
    steps = results[1:]
    reward, terminated, truncated = ([result[name] for result in steps] for name in ("reward", "terminated", "truncated"))
    states = [{k.removeprefix("state "): v for k, v in result.items() if k.startswith("state ")} for result in results]
    infos = [{k: v for k, v in result.items() if k in INFO_NAMES or k.startswith(METRIC)} for result in steps]
    obs = [result["observation"] for result in results]
    masks = [result["action_mask"] for result in results if "action_mask" in result]
    return CompiledRun(actions, obs, states, reward, terminated, truncated, infos, masks, limit)


PROGRESS = "progress.npy"  # the number of results that are complete
ACTIONS = "actions.npy"


def record_run(
    env: Environment, folder: Path, *, num_envs: int, steps: int, limit: int | None, seed: int, time_limit: float
) -> str:
    """Runs with random actions and writes all results to a folder, then checks that the same seed repeats the results.

    Args:
        env: the environment.
        folder: the path of the folder.
        num_envs: the number of environments, E.
        steps: the number of steps, T.
        limit: the number of steps of an episode; None for no limit.
        seed: the seed of the environments and of the actions.
        time_limit: the CPU seconds that one call may take; a call that takes longer ends the process by SIGXCPU.

    Returns:
        What was checked, as text.

    Raises:
        AuthoringError: the code cannot be compiled, or results depend on the call or on the number of environments.
    """
    envs = VectorEnv(env, num_envs, device="cpu", output="numpy", max_episode_steps=limit)
    schema = envs.simulation.schema
    actions = random_actions(env, schema, steps, 2 * num_envs, seed)
    run_actions = np.lib.format.open_memmap(folder / ACTIONS, "w+", actions.dtype, actions[:, :num_envs].shape)
    run_actions[...] = actions[:, :num_envs]
    progress = np.lib.format.open_memmap(folder / PROGRESS, "w+", np.int64, (1,))
    files: dict[str, NDArray[Any]] = {}
    _compile_kernels(envs, actions)
    allow_cpu_time(time_limit)
    for t, results in enumerate(step_results(envs, run_actions, seed)):
        allow_cpu_time(time_limit)
        for name, array in results.items():
            if name not in files:
                shape, path = (steps + 1, *array.shape), folder / f"{name}.npy"
                files[name] = np.lib.format.open_memmap(path, "w+", array.dtype, shape)
            files[name][t] = array
        progress[0] = t + 1
    same_envs = f"two runs with seed {seed}", envs
    twice = VectorEnv(env, 2 * num_envs, device="cpu", output="numpy", max_episode_steps=limit)
    _compile_kernels(twice, actions)
    more_envs = f"runs of {num_envs} and of {2 * num_envs} environments", twice
    for runs, others in (same_envs, more_envs):
        for t, results in enumerate(step_results(others, actions[:, : others.num_envs], seed)):
            allow_cpu_time(time_limit)
            first = {name: array[:num_envs] for name, array in results.items()}
            check_equal_step(env, schema, t, {name: files[name][t] for name in first}, first, runs)
        others.close()
    return "a seed repeats its run, and results do not depend on the number of environments"


def _compile_kernels(envs: VectorEnv, actions: NDArray[Any]) -> None:
    """Compiles the kernels of environments, so that the time limit of the first calls does not include that."""
    CpuKernels(envs.simulation.spec, envs.num_envs).reset(envs.simulation.options)
    by_role = split_actions(actions, envs.simulation.schema)
    dtypes = tuple(rows.dtype.type for rows in by_role.values()) if isinstance(by_role, dict) else actions.dtype.type
    envs.simulation.step_launcher(dtypes)


def load_recorded_run(folder: Path, limit: int | None) -> CompiledRun | None:
    """Reads the results that `record_run` wrote, up to the last complete step.

    Args:
        folder: the path of the folder.
        limit: the number of steps of an episode; None for no limit.

    Returns:
        The run, or None if there are no results.
    """
    if not (folder / PROGRESS).exists():
        return None
    count = int(np.load(folder / PROGRESS)[0])
    paths = (path for path in folder.glob("*.npy") if path.name not in (PROGRESS, ACTIONS))
    files = {path.stem: np.load(path, mmap_mode="r") for path in paths}
    results = [{name: np.asarray(array[t]) for name, array in files.items()} for t in range(count)]
    return make_run(np.load(folder / ACTIONS), results, limit) if count else None


def check_equal_step(
    env: Environment,
    schema: EnvSchema,
    t: int,
    expected: Mapping[str, NDArray[Any]],
    actual: Mapping[str, NDArray[Any]],
    runs: str,
) -> None:
    """Checks that the results of two runs after t steps are bit-identical.

    Args:
        env: the environment.
        schema: its schema.
        t: the number of steps.
        expected: {name: (E, ...) array} of one run.
        actual: the same of the other run.
        runs: a description of the two runs, for the message.

    Raises:
        AuthoringError: they differ; the message names the first difference.
    """
    different = differences(expected, actual, differs_in_bits)
    if different:
        first = different[0]
        place = first.place(make_result_layout(schema))
        problem = f"{runs} differ: after {t} steps {place} is {first.expected} and {first.actual}"
        function = step_function(env) if t else first_function(env.reset)
        raise authoring_error(function, f"{problem}; results must depend on the arguments alone")


MAX_VALUES = 16  # the number of values of an integer field around which a moment is selected


class Moment(NamedTuple):
    """A reset or a step of one environment, with the states before and after it."""

    t: int  # the number of the call, 0 for the first reset
    row: int  # the index of the environment
    key: Key
    before: dict[str, NDArray[Any]]  # {field: (...) array}; for a reset the same as `after`
    after: dict[str, NDArray[Any]]
    action: NDArray[Any] | None  # (...) or (..., K); None for a reset
    limit: int  # the number of steps of an episode
    metrics_before: Mapping[str, Any]  # {name: value} of the metrics up to the step before

    def place(self) -> str:
        """Describes the moment for messages."""
        if self.key.step == 0:
            return f"in the reset of environment {self.row} after {self.t} steps"
        return f"in step {self.t} of environment {self.row}, step {self.key.step} of its episode"


class RunMoments:
    """The resets and steps of a run.

    Args:
        run: the results.
        seed: the seed with which the run was reset.
    """

    def __init__(self, run: CompiledRun, seed: int) -> None:
        self.run, self._seed = run, seed
        num_calls, num_envs = len(run.obs), len(run.obs[0])
        # (T + 2, E) the number of a step in its episode, 0 for a reset, and that of the episode. The last row is of the call
        # after the run.
        self._all_times, self._episodes = (np.zeros((num_calls + 1, num_envs), int) for _ in range(2))
        for t in range(1, num_calls + 1):
            # The number of an episode is that of the step that resets the environment.
            over = (run.terminated[t - 2] | run.truncated[t - 2]) if t > 1 else np.zeros(num_envs, bool)
            self._episodes[t] = np.where(over, t, self._episodes[t - 1])
            self._all_times[t] = np.where(over, 0, self._all_times[t - 1] + 1)
        self.times = self._all_times[:-1]  # (T + 1, E)

    def at(self, t: int, row: int) -> Moment:
        """Returns a reset or step of the run.

        Args:
            t: the number of the call, 0 for the first reset; that after the last one has no results.
            row: the index of the environment.
        """
        run, time = self.run, int(self._all_times[t, row])
        key = Key(self._seed & 0xFFFFFFFF, self._seed >> 32, row, int(self._episodes[t, row]), time)
        after = {k: v[row] for k, v in run.states[t].items()} if t < len(run.states) else {}
        before = {k: v[row] for k, v in run.states[t - 1].items()} if time > 0 or not after else after
        action = run.actions[t - 1, row] if time > 0 else None
        metrics = {name: values[row] for name, values in metrics_of(run.infos[t - 2]).items()} if time > 1 else {}
        return Moment(t, row, key, before, after, action, run.limit or NO_STEP_LIMIT, metrics)

    def select(self, count: int, seconds: float = 0.0) -> Iterator[tuple[int, int]]:
        """Selects moments: some in any case, ordered by time, then further ones while there is time.

        Args:
            count: the number of moments that are selected in any case, those around rare states first.
            seconds: the CPU seconds of this thread for which further moments are selected, in random order.

        Yields:
            (t, row) of each, the arguments of `at`.
        """
        order = self.order()
        yield from sorted(islice(order, count))
        start = time.thread_time()
        yield from takewhile(lambda _: time.thread_time() - start < seconds, order)

    def order(self) -> Iterator[tuple[int, int]]:
        """Yields (t, row) of all moments, those around rare states first, then all others in random order."""
        permutation = np.random.default_rng(self._seed).permutation(self.times.size)
        others = ((int(k) // self.times.shape[1], int(k) % self.times.shape[1]) for k in permutation)
        yielded: set[tuple[int, int]] = set()
        for place in chain(self._rare(), others):
            if place not in yielded:
                yielded.add(place)
                yield place

    def _rare(self) -> Iterator[tuple[int, int]]:
        """Yields (t, row) around the extremes of each float field, around values of integer fields, and at ends of episodes."""
        run = self.run
        fields = [np.stack([state[name] for state in run.states]) for name in run.states[0]]
        for places in zip_longest(*map(_extremes, fields)):
            for t, row in (place for place in places if place is not None):
                yield t, row
                if t + 1 < len(self.times) and self.times[t + 1, row] > 0:
                    yield t + 1, row
        for ended in filter(None, (run.terminated, run.truncated)):
            for t, row in np.argwhere(np.stack(ended))[:MAX_VALUES].tolist():
                yield t + 1, row


def _extremes(values: NDArray[Any]) -> list[tuple[int, int]]:
    """(t, row) where a float field (T + 1, E, ...) has its extremes, or where an integer field first has each of its values."""
    flat = values.reshape(-1)
    if values.dtype.kind == "f":
        places = [int(flat.argmax()), int(flat.argmin())]
    else:
        _, first = np.unique(flat, return_index=True)
        selected = np.unique(np.linspace(0, len(first) - 1, MAX_VALUES).astype(int))[::-1]
        places = first[selected].tolist()
    size = flat.size // (values.shape[0] * values.shape[1])
    return [(k // size // values.shape[1], k // size % values.shape[1]) for k in places]
