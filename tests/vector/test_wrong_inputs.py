"""Random wrong inputs to everything that a user calls are accepted, or refused by a clear error; nothing else changes.

A clear error is raised by a statement of gpuvec or Gymnasium, with a message, and is a TypeError, a ValueError or an error of
these packages: never one that NumPy, torch or Python raise where they stumble over the input. After it the environment has the
bits of one that never got the input.
"""

from __future__ import annotations

import dataclasses
import linecache
import reprlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tests.support.arrays import host
from tests.support.bundled_envs import BUNDLED_ENVS, SHORT_EPISODES, SINGLE_AGENT, SMALL_PARAMS, THREAD_PER_ENV
from tests.support.counter_env import COUNTER
from tests.support.wrong_inputs import PACKAGES, SCALARS, describe_unclear, wrong_array, wrong_value

from gpuvec import MultiAgentEnv, SingleAgentEnv, parallel_env, register
from gpuvec.episode import fetch_episode
from gpuvec.errors import AuthoringError
from gpuvec.learners.algorithms import ALGORITHMS
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.population.population_args import PopulationArgs
from gpuvec.registration import registered_envs
from gpuvec.vector.env import VectorEnv
from gpuvec.vector.reset_arguments import RowStreams
from gpuvec.vector.wrappers import (
    ClipReward,
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    RescaleAction,
)

E = 3
INPUTS_PER_OUTPUT = 24  # with three or four outputs of fourteen environments more than 1,000
ARGUMENTS = (
    "num_envs", "device", "output", "autoreset_mode", "buffers", "max_episode_steps", "render_mode", "per_env", "backend",
    "reward", "validate", "debug",
)  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore")  # of NumPy and torch, about the inputs


def outputs_of(name: str) -> tuple[str, ...]:
    """The outputs that are installed; JAX's integers have kernels of their own, which are quick to compile for one agent."""
    outputs = ["numpy", "dlpack"]
    for output in ("torch", "jax"):
        try:
            __import__(output)
        except ImportError:
            continue
        if output == "torch" or name in THREAD_PER_ENV:
            outputs.append(output)
    return tuple(outputs)


class Pair:
    """An environment that gets wrong inputs, and its twin that gets none."""

    def __init__(self, name: str, output: str, rng: np.random.Generator) -> None:
        self.name, self.output, self.rng, self.declared = name, output, rng, BUNDLED_ENVS[name]
        self.env, self.twin = (self._make() for _ in range(2))
        for each in (self.env, self.twin):
            each.reset(seed=0)
        self.env.action_space.seed(0)
        if name not in THREAD_PER_ENV:
            self._compile_no_other_dtypes()

    def _compile_no_other_dtypes(self) -> None:
        """Lets steps with accepted actions of other dtypes than the space's do nothing, since each dtype compiles a kernel.

        Environments with a thread for each env compile quickly, and tests/engine/test_action_access.py steps others.
        """
        simulation = self.env.unwrapped.simulation
        step_launcher, own_dtype = simulation.step_launcher, simulation.options.action_dtype
        simulation.step_launcher = lambda dtype: step_launcher(dtype) if dtype == own_dtype else lambda *arguments: None

    def _make(self) -> Any:
        render_mode = "rgb_array" if self.declared.draw else None
        return gym.make_vec(
            f"gpuvec/{self.name}", E, device="cpu", output=self.output, render_mode=render_mode,
            **SMALL_PARAMS.get(self.name, {}), **SHORT_EPISODES,
        )  # fmt: skip

    def value(self, shape: tuple[int, ...] = (E,)) -> Any:
        return wrong_value(self.rng, shape)

    def call(self) -> tuple[str, Callable[[], Any]]:
        """A random call of a method, and its description."""
        calls = [
            self._step, self._step, self._step_to_out, self._reset, self._reset_options, self._row_streams, self._set_state,
            self._set_state, self._reset_pool, self._load, self._attribute, self._set_attr, self._rollout, self._render,
        ]  # fmt: skip
        return calls[self.rng.integers(len(calls))]()

    def _step(self) -> tuple[str, Callable[[], Any]]:
        actions: Any = self.env.action_space.sample()
        if isinstance(actions, dict):
            role = str(self.rng.choice(list(actions)))
            actions = {**actions, role: self.value(np.shape(actions[role]))}
        else:
            actions = self.value(np.shape(actions))
        return f"step({reprlib.repr(actions)})", lambda: self.env.step(actions)

    def _step_to_out(self) -> tuple[str, Callable[[], Any]]:
        names = ["obs", "reward", "terminated", "truncated", "final_obs", "final_mask", "x"]
        out = {str(self.rng.choice(names)): self.value()} if self.rng.random() < 0.8 else self.value()
        actions = self._actions()
        return f"step(..., out={reprlib.repr(out)})", lambda: self.env.step(actions, out=out)

    def _actions(self) -> Any:
        """Actions that are right."""
        return self.env.action_space.sample()

    def _reset(self) -> tuple[str, Callable[[], Any]]:
        seed = self.value()
        return f"reset(seed={reprlib.repr(seed)})", lambda: self.env.reset(seed=seed)

    def _reset_options(self) -> tuple[str, Callable[[], Any]]:
        name = str(self.rng.choice(["reset_mask", "x", *self.declared.reset_options]))
        options = {name: self.value()} if self.rng.random() < 0.8 else self.value()
        return f"reset(options={reprlib.repr(options)})", lambda: self.env.reset(options=options)

    def _row_streams(self) -> tuple[str, Callable[[], Any]]:
        seeds, rows = self.value(), [0, 1, 2] if self.rng.random() < 0.5 else self.value()
        return f"RowStreams({seeds!r}, {rows!r})", lambda: self.env.reset(seed=RowStreams(seeds, rows))

    def _fields(self) -> Any:
        state = host(self.twin.get_state())
        name = str(self.rng.choice(list(state)))
        return {name: self.value(np.shape(state[name]))} if self.rng.random() < 0.8 else self.value()

    def _set_state(self) -> tuple[str, Callable[[], Any]]:
        fields, mask = self._fields(), self.value() if self.rng.random() < 0.3 else None
        return f"set_state({reprlib.repr(fields)}, {reprlib.repr(mask)})", lambda: self.env.set_state(fields, mask)

    def _reset_pool(self) -> tuple[str, Callable[[], Any]]:
        pool = self._fields()

        def set_pool() -> None:
            self.env.set_reset_pool(pool)
            self.env.set_reset_pool(None)

        return f"set_reset_pool({reprlib.repr(pool)})", set_pool

    def _load(self) -> tuple[str, Callable[[], Any]]:
        saved: Any = self.twin.state_dict()
        name = str(self.rng.choice(list(saved["buffers"])))
        buffers = {**saved["buffers"], name: self.value(np.shape(saved["buffers"][name]))}
        saved = [{**saved, "buffers": buffers}, {**saved, "seed": self.value()}, self.value()][self.rng.integers(3)]
        return f"load_state_dict({name} in {reprlib.repr(saved)})", lambda: self.env.load_state_dict(saved)

    def _attribute(self) -> tuple[str, Callable[[], Any]]:
        name = self.value()
        method = self.env.get_attr if self.rng.random() < 0.5 else self.env.call
        return f"{method.__name__}({reprlib.repr(name)})", lambda: method(name)

    def _set_attr(self) -> tuple[str, Callable[[], Any]]:
        params = self.env.params._asdict()
        name: Any = str(self.rng.choice(list(params))) if params and self.rng.random() < 0.8 else self.value()
        value = self.value()

        def set_attr() -> None:
            self.env.set_attr(name, value)
            self.env.set_attr(name, params[name])

        return f"set_attr({name!r}, {reprlib.repr(value)})", set_attr

    def _rollout(self) -> tuple[str, Callable[[], Any]]:
        wrong_steps, policy = self.rng.random() < 0.5, self.value((2,))
        arguments: tuple[Any, Any] = (policy, "random") if wrong_steps else (2, policy)
        if wrong_steps and type(policy) in (int, np.int64, np.uint8):
            arguments = (0, "random")  # which would be compiled
        return f"rollout{reprlib.repr(arguments)}", lambda: self.env.rollout(*arguments)

    def _render(self) -> tuple[str, Callable[[], Any]]:
        rows = self.value()
        return f"render({reprlib.repr(rows)})", lambda: self.env.render(rows)

    def check(self) -> Iterator[str]:
        """Makes a random call; yields what is wrong with its error, or with the environment after it."""
        description, call = self.call()
        try:
            call()
        except Exception as error:  # noqa: BLE001  # which the test is about
            problem = describe_unclear(error)
            if problem is not None:
                yield f"{description}: {problem}"
        else:
            self.env.load_state_dict(self.twin.state_dict())
        buffers, expected_buffers = (host(each.state_dict()["buffers"]) for each in (self.env, self.twin))
        for name, array in expected_buffers.items():
            if not np.array_equal(buffers[name].view(np.uint8), array.view(np.uint8)):
                yield f"{description}: changed {name}"
        actions = self._actions()
        actual, expected = (flat(host(each.step(self._converted(actions))[:4])) for each in (self.env, self.twin))
        if any(x.tobytes() != y.tobytes() for x, y in zip(actual, expected, strict=True)):
            yield f"{description}: changed the next step"

    def _converted(self, actions: Any) -> Any:
        if isinstance(actions, dict):
            return {role: self._converted(part) for role, part in actions.items()}
        if self.output == "torch":
            import torch

            return torch.from_numpy(actions)
        if self.output == "jax":
            import jax

            return jax.numpy.asarray(actions)
        return actions

    def close(self) -> None:
        for each in (self.env, self.twin):
            each.close()


def flat(values: Any) -> list[Any]:
    """The arrays in nested dicts and tuples."""
    if isinstance(values, dict):
        values = tuple(values.values())
    return [x for value in values for x in flat(value)] if isinstance(values, tuple | list) else [values]


def rng_of(*key: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def check_inputs(name: str, count: int) -> None:
    problems = []
    for output in outputs_of(name):
        pair = Pair(name, output, rng_of(name, output, count))
        problems += [f"{output}: {problem}" for _ in range(count) for problem in pair.check()]
        pair.close()
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", BUNDLED_ENVS)
def test_wrong_inputs_of_methods_are_refused_clearly_and_change_nothing(name) -> None:
    check_inputs(name, INPUTS_PER_OUTPUT)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLED_ENVS)
def test_many_wrong_inputs_of_methods(name) -> None:
    check_inputs(name, 1000)


def refusal_of(call: Callable[[], Any]) -> str | None:
    """What is wrong with the error of a call; None if there is none, or a clear one."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  # which the test is about
        return describe_unclear(error)
    return None


@pytest.mark.parametrize("name", BUNDLED_ENVS)
def test_wrong_arguments_of_make_vec_are_refused_clearly(name) -> None:
    rng, problems = rng_of("make", name), []
    names = (*ARGUMENTS, *BUNDLED_ENVS[name].params._fields)
    for _ in range(60):
        argument = str(rng.choice(names))
        value = wrong_value(rng, (E,))
        if isinstance(value, int | np.integer) and 64 < value < 10**7:
            value = -value  # since large environments take long to declare
        arguments = {"num_envs": E, "device": "cpu", "output": "numpy", **SMALL_PARAMS.get(name, {}), **SHORT_EPISODES}
        arguments |= {argument: value} | ({"per_env": (argument,)} if rng.random() < 0.3 and argument not in ARGUMENTS else {})
        problem = refusal_of(lambda arguments=arguments: gym.make_vec(f"gpuvec/{name}", **arguments).close())
        problems += [f"{argument}={reprlib.repr(value)}: {problem}"] if problem else []
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", SINGLE_AGENT)
def test_wrong_inputs_of_one_environment_are_refused_clearly(name) -> None:
    rng, problems = rng_of("scalar", name), []
    env = gym.make(f"gpuvec/{name}", disable_env_checker=True)
    env.reset(seed=0)
    field = next(iter(env.unwrapped.get_state()))
    for _ in range(40):
        value = wrong_value(rng, env.action_space.shape or ())
        for call in (
            lambda value=value: env.step(value),
            lambda value=value: env.unwrapped.set_state({field: value}),
            lambda value=value: env.unwrapped.set_state(value),
            lambda value=value: env.reset(seed=value),
            lambda value=value: env.reset(options=value),
        ):
            problem = refusal_of(call)
            problems += [f"{reprlib.repr(value)}: {problem}"] if problem else []
        env.reset(seed=0)
    assert not problems, "\n".join(problems)


def unclear_refusals(calls: Callable[[Any], Any], values: list[Any]) -> list[str]:
    """What is wrong with the errors of some calls with each value; `calls(value)` yields functions."""
    problems = [(value, refusal_of(call)) for value in values for call in calls(value)]
    return [f"{reprlib.repr(value)}: {problem}" for value, problem in problems if problem]


def test_wrong_inputs_of_wrappers_and_recordings_are_refused_clearly() -> None:
    rng = rng_of("wrappers")
    envs = gym.make_vec("gpuvec/Pendulum-v1", E, device="cpu", output="numpy", max_episode_steps=5)
    envs.reset(seed=0)
    wrapped = RescaleAction(RecordEpisodeStatistics(envs))

    def act(obs: Any) -> Any:
        return np.zeros((E, 1), np.float32)

    def calls(value: Any) -> Iterator[Callable[[], Any]]:
        yield lambda: wrapped.step(value)
        yield lambda: wrapped.reset(options={"reset_mask": value})
        yield lambda: wrapped.reset(seed=value)
        yield lambda: fetch_episode(envs, act, rows=value)
        yield lambda: fetch_episode(envs, act, max_steps=value)
        yield lambda: fetch_episode(value, act)
        is_large = isinstance(value, int) and value > 2**20  # which would be allocated
        yield lambda: RecordEpisodeStatistics(envs, -value if is_large else value)
        yield lambda: NormalizeObservation(envs, value)
        yield lambda: NormalizeReward(envs, value)
        yield lambda: NormalizeReward(envs, epsilon=value)
        yield lambda: ClipReward(envs, value, 1.0)
        yield lambda: RescaleAction(envs, value, 1.0)
        yield lambda: RescaleAction(envs, -1.0, value)

    problems = unclear_refusals(calls, [*SCALARS, *(wrong_array(rng, (E, 1)) for _ in range(40))])
    assert not problems, "\n".join(problems)


def test_wrong_inputs_of_the_interface_of_pettingzoo_are_refused_clearly() -> None:
    pytest.importorskip("pettingzoo")
    rng = rng_of("pettingzoo")
    env = parallel_env("gpuvec/TagGridWorld-v0", **SMALL_PARAMS["TagGridWorld-v0"])
    env.reset(seed=0)

    def calls(value: Any) -> Iterator[Callable[[], Any]]:
        env.reset(seed=0)
        yield lambda: env.step({**dict.fromkeys(env.agents, 0), env.agents[0]: value})
        env.reset(seed=0)
        yield lambda: env.step(value)
        yield lambda: env.set_state(value)
        yield lambda: env.set_state({"x": value})
        yield lambda: env.reset(seed=value)
        yield lambda: env.reset(options=value)
        yield lambda: env.observation_space(value)
        yield lambda: env.action_space(value)
        yield lambda: parallel_env(value)
        yield lambda: parallel_env("gpuvec/TagGridWorld-v0", device=value)

    problems = unclear_refusals(calls, [*SCALARS, *(wrong_array(rng, ()) for _ in range(40))])
    assert not problems, "\n".join(problems)


def test_wrong_saved_states_are_refused_clearly() -> None:
    """Keys of types that have no order, and values of all kinds, in place of all or a part of what was saved."""
    rng = rng_of("saved")
    env = gym.make_vec("gpuvec/CartPole-v1", E, device="cpu", output="numpy")
    wrappers = [NormalizeObservation(env), NormalizeReward(env), RecordEpisodeStatistics(env)]
    wrappers[0].reset(seed=0)
    settings = PPOArgs(env="gpuvec/CartPole-v1", device="cpu")
    saved = [(each, {**each.state_dict()}) for each in (env, *wrappers)]

    def calls(value: Any) -> Iterator[Callable[[], Any]]:
        yield lambda: env.reset(options=value)
        yield lambda: env.set_state(value)
        yield lambda: env.load_state_dict({"buffers": value, "seed": 0})
        for field in dataclasses.fields(PopulationArgs):
            yield lambda field=field: PopulationArgs(**{"base": settings, "num_agents": 2, field.name: value})
        yield lambda: PopulationArgs(settings, 2, settings={"learning_rate": value})
        yield lambda: PopulationArgs(settings, 2, settings={"learning_rate": (value, 1.0)})
        for owner, state in saved:
            yield lambda owner=owner: owner.load_state_dict(value)
            name = next(iter(state))
            yield lambda owner=owner, state=state, name=name: owner.load_state_dict({**state, name: value})
            owner.load_state_dict(state)

    problems = unclear_refusals(calls, [*SCALARS, *(wrong_array(rng, (E,)) for _ in range(10))])
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_wrong_settings_are_refused_clearly(algorithm) -> None:
    args_class = ALGORITHMS[algorithm].args_class
    problems = []
    for field in dataclasses.fields(args_class):
        for value in SCALARS:
            problem = refusal_of(lambda name=field.name, value=value: args_class(**{name: value}))
            problems += [f"{field.name}={value!r}: {problem}"] if problem else []
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("env_class", [SingleAgentEnv, MultiAgentEnv], ids=lambda cls: cls.__name__)
def test_wrong_declarations_are_refused_clearly(env_class) -> None:
    """When they are declared, or when an environment is made of them."""
    declared = COUNTER if env_class is SingleAgentEnv else registered_envs("gpuvec")["TagGridWorld-v0"]
    fields = {field.name: getattr(declared, field.name) for field in dataclasses.fields(declared)}
    problems = []
    for name in (*fields, "tables", "unknown"):
        if name in fields or name == "unknown" or env_class is SingleAgentEnv:
            for value in SCALARS:
                if callable(value):
                    continue  # which may be a function of the author that does what it likes
                problem = refusal_of(
                    lambda name=name, value=value: VectorEnv(
                        env_class(**{**fields, name: value}), 1, device="cpu", output="numpy"
                    )
                )
                problems += [f"{name}={value!r}: {problem}"] if problem else []
    assert not problems, "\n".join(problems)


def test_wrong_registrations_are_refused_clearly() -> None:
    problems = []
    for value in SCALARS:
        for call in (lambda value=value: register(value, COUNTER), lambda value=value: register("tests/Wrong-v0", value)):
            problem = refusal_of(call)
            problems += [f"{value!r}: {problem}"] if problem else []
        gym.registry.pop(value if isinstance(value, str) else "", None)
    assert not problems, "\n".join(problems)
    assert "tests/Wrong-v0" not in gym.registry


@pytest.mark.parametrize("name", ["view"])
def test_names_of_fields_that_compiled_code_cannot_read_are_refused(name) -> None:
    from typing import NamedTuple

    state = NamedTuple("State", [(name, float)])
    with pytest.raises(AuthoringError, match="State has a field 'view', which compiled code takes for NumPy's method"):
        dataclasses.replace(COUNTER, state=state)
    with pytest.raises(AuthoringError, match="Params has a field 'view'"):
        dataclasses.replace(COUNTER, params=NamedTuple("Params", [(name, float)])(1.0))


def test_an_unclear_error_is_found() -> None:
    assert describe_unclear_of(lambda: (1,)[COUNTER.render_fps]) is not None
    assert describe_unclear_of(lambda: np.zeros(2).reshape(3)) is not None
    assert describe_unclear_of(lambda: VectorEnv(COUNTER, 0)) is None


def describe_unclear_of(call: Callable[[], Any]) -> str | None:
    with pytest.raises(Exception) as caught:  # of any type
        call()
    return describe_unclear(caught.value)


REWRAPPING = """
def call(rows):
    try:
        memoryview(rows)
    except TypeError as error:
        raise {}
"""


@pytest.mark.parametrize(
    ("statement", "is_clear"),
    [
        ("TypeError(str(error)) from None", False),
        ("TypeError(f'role {rows!r}: {error}') from error", False),
        ("TypeError('this cannot be read by an environment')", False),
        ("TypeError(f'rows cannot be read ({error}); give an array')", True),
        ("TypeError(f'an array is needed, and got {rows!r}')", True),
        ("error", False),
        (" # of NumPy", False),
    ],
)
def test_an_error_of_another_package_is_not_clear_because_it_is_raised_again(statement, is_clear) -> None:
    source = REWRAPPING.format(statement)
    file, namespace = f"{PACKAGES[0]}planted.py", {}
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), namespace)  # a function of gpuvec's folder, which has none like it
    assert (describe_unclear_of(lambda: namespace["call"](7)) is None) == is_clear
