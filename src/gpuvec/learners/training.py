"""The course of a training: iterations until there were enough steps, or until the target is reached and confirmed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, NamedTuple

import torch

from gpuvec.engine.backends.device import parse_device
from gpuvec.learners.algorithms import ALL, policy_class
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.cuda_graphs.settings import torch_settings
from gpuvec.learners.environments import make_env
from gpuvec.learners.evaluation.evaluate import evaluate, is_multi_agent
from gpuvec.learners.learner import Learner, PolicyFactory
from gpuvec.learners.networks.actor_critic import Body
from gpuvec.learners.opponents import Frozen, FrozenPolicy, Scripted, ScriptedPolicy
from gpuvec.learners.phases import OnPhase, phase
from gpuvec.learners.seeds import CONFIRMATION, stream_seed

ITERATIONS_TO_CONFIRM = 8  # after an evaluation that fell short of the target, until the next
SHARED_SETTINGS = (
    "env",
    "params",
    "backend",
    "seed",
    "device",
    "num_envs",
    "num_steps",
    "total_steps",
    "target_return",
    "threads",
)
"""Settings in which all policies of a training agree."""

PolicyConfigs = Mapping[str, TrainingArgs | Frozen | Scripted]
"""{role: its settings, which tell the algorithm, or an opponent that does not learn}."""


OnIteration = Callable[[Learner, dict[str, float]], None]


class Result(NamedTuple):
    """What `train` returns."""

    policies: dict[str, TrainingArgs | Frozen | Scripted]  # with nothing left open; {"all": ...} for one that all share
    networks: dict[str, Any]  # of those that have one, as `players.PolicyNetwork`
    history: list[dict[str, float]]  # the metrics of each iteration
    checkpoint: dict[str, Any]

    @property
    def args(self) -> TrainingArgs:
        """The settings of the one policy."""
        (only,) = self.policies.values()
        assert isinstance(only, TrainingArgs)
        return only

    @property
    def network(self) -> Any:
        """The network of the one policy."""
        (only,) = self.networks.values()
        return only


def train(
    args: TrainingArgs | PolicyConfigs,
    on_iteration: OnIteration | None = None,
    checkpoint: Mapping[str, Any] | None = None,
    body: Body | Mapping[str, Body] | None = None,
    on_phase: OnPhase | None = None,
    exact_at: Callable[[int], bool] | None = None,
) -> Result:
    """Trains until `args.total_steps`, or until `args.target_return` is reached.

    On a GPU the metrics of an iteration are read while the next one runs, unless `target_return` is set or `exact_at` asks for
    the state that they belong to. Results are the same.

    Args:
        args: the settings, which tell the algorithm; for several policies those of each role, or an opponent.
        on_iteration: called with the learner and the metrics of each iteration, in their order.
        checkpoint: where to go on: of the same environment, algorithms and networks; other settings may differ.
        body: makes a network of one's own, see `networks.actor_critic`, and for DDPG `networks.deterministic`; with several
            policies {role: body}.
        on_phase: called with a text when the training begins to wait, such as "compiling gpuvec/CartPole-v1", and with "" when
            the wait is over.
        exact_at: whether `on_iteration` has to find the learner in the state after iteration k, for a checkpoint, say; called
            with k after its launch. Where it gives False, the learner may be one iteration ahead of the metrics, and
            `learner.iteration` is metrics["iteration"] + 1. By default each iteration is exact if there is an `on_iteration`.

    Raises:
        ValueError, TypeError, DeviceError, StateError: settings, a body, a device or a checkpoint that do not fit.
        OutOfMemoryError: the environment or what the learner stores does not fit into the memory that is free.
        NonFiniteError: an iteration met a number that is not finite; `on_iteration` does not see it.
    """
    configs = args if isinstance(args, Mapping) else {ALL: args}
    device = parse_device(shared_settings(configs).device)
    configs = {role: one.resolved(str(device)) if isinstance(one, TrainingArgs) else one for role, one in configs.items()}
    course = shared_settings(configs)
    env_args: dict[str, Any] = {"device": course.device, "output": "torch", "autoreset_mode": "SameStep", "buffers": 1}
    env_args["backend"] = course.backend
    compiling = f"compiling {course.env}"
    with torch_settings(course.device, course.threads), ExitStack() as stack:
        with phase(on_phase, compiling):
            env = stack.enter_context(closing(make_env(course.env, course.num_envs or 1, course.params, **env_args)))
            learner = make_learner(configs, env, body)
            if checkpoint is not None:
                learner.load_state_dict(checkpoint)
        if course.device != "cpu":
            with phase(on_phase, "capturing CUDA graphs"):
                learner.capture()
        iterations = Iterations(course, learner, on_iteration, exact_at)
        if course.device == "cpu" and learner.iteration < course.iterations:
            with phase(on_phase, compiling):  # what is compiled at its first use
                learner.iterate()
            iterations.read()
        history = iterations.run()
        networks = {role: p.network for role, p in learner.policies.items() if p.network is not None}
        for network in networks.values():
            for p in network.parameters():  # of which fused kernels have views with gaps
                p.data = p.data.contiguous()
        return Result(configs, networks, history, learner.state_dict())


def reads_late(device: str) -> bool:
    """Whether metrics are read while the next iteration runs. A CPU has computed them when an iteration returns."""
    return device != "cpu"


class Iterations:
    """The iterations of a training, and what is reported of them.

    Args:
        course: the settings, resolved.
        learner: what iterates.
        on_iteration, exact_at: as of `train`.
    """

    def __init__(
        self,
        course: TrainingArgs,
        learner: Learner,
        on_iteration: OnIteration | None,
        exact_at: Callable[[int], bool] | None,
    ) -> None:
        self.course, self.learner, self.on_iteration = course, learner, on_iteration
        self.exact_at = exact_at or (lambda iteration: on_iteration is not None)
        self.history: list[dict[str, float]] = []
        self.is_solved = False
        self._device = parse_device(course.device)
        self._read_at = time.perf_counter()  # when the last metrics were read
        self._late = reads_late(course.device) and course.target_return is None

    def run(self) -> list[dict[str, float]]:
        """Iterates to the end; the metrics of each iteration."""
        while self.learner.iteration < self.course.iterations and not self.is_solved:
            self.learner.iterate()
            self.read()
        return self.history

    def read(self) -> None:
        """Starts to read the iteration that was launched last, and reports those that are due: the one before it, and itself if
        it is the last one or has to be exact.
        """
        self.learner.start_read()
        done = self.learner.iteration
        is_exact = not self._late or done >= self.course.iterations or self.exact_at(done)
        while self.learner.reads_waiting > (0 if is_exact else 1):
            self._report(self.learner.finish_read())

    def _report(self, metrics: dict[str, float]) -> None:
        course, learner = self.course, self.learner
        now, done = time.perf_counter(), learner.iteration - learner.reads_waiting
        took, self._read_at = now - self._read_at, now
        learner.seconds += took
        progress = {"iteration": done, "steps": done * course.steps_per_iteration, "seconds": learner.seconds}
        progress |= {"steps_per_second": course.steps_per_iteration / took, "gpu_memory": float(self._memory())}
        self.history.append({**progress, **metrics})
        if course.target_return is not None and metrics["last_return"] >= course.target_return and done >= learner.confirm:
            # Those episodes began under older policies, and a policy that has nothing left to learn drifts.
            returns = evaluate(
                learner.policy.network,
                course.env,
                seed=stream_seed(course.seed, CONFIRMATION),
                device=course.device,
                params=course.params,
            )
            self.is_solved = float(returns.mean()) >= course.target_return
            learner.confirm = done + ITERATIONS_TO_CONFIRM
        if self.on_iteration is not None:
            self.on_iteration(learner, self.history[-1])

    def _memory(self) -> int:
        """Bytes of the GPU that this process has taken for arrays."""
        device = self._device
        return 0 if device.kind == "cpu" else torch.cuda.memory_reserved(device.ordinal) + device.pooled_bytes()


def make_learner(args: TrainingArgs | PolicyConfigs, env: Any, body: Body | Mapping[str, Body] | None = None) -> Learner:
    """The learner that `train` lets go on; its settings are resolved, and `env` is as `Learner` takes it.

    Raises:
        ValueError: policies, or bodies, that do not fit the environment or each other.
    """
    configs = args if isinstance(args, Mapping) else {ALL: args}
    bodies = body if isinstance(body, Mapping) else {} if body is None else dict.fromkeys(configs, body)
    for role in bodies:
        one = configs.get(role)
        if not isinstance(one, TrainingArgs):
            raise ValueError(f"a body of one's own goes with the settings of an algorithm, which {role} has not.")
    require_roles(configs, env)
    course = shared_settings(configs)
    return Learner(course, env, {role: make_policy(one, course, bodies.get(role)) for role, one in configs.items()})


def shared_settings(configs: PolicyConfigs) -> TrainingArgs:
    """The settings of the course, which are those of each policy that learns.

    Raises:
        TypeError: something in place of a policy.
        ValueError: there is none, or they differ.
    """
    for role, one in configs.items():
        if not isinstance(one, TrainingArgs | Frozen | Scripted):
            raise TypeError(
                f"the policy of {role} is a {type(one).__name__}; it must be the settings of an algorithm, or Frozen(...) or "
                "Scripted(...), one for each role: {role: policy}."
            )
    learning = {role: one for role, one in configs.items() if isinstance(one, TrainingArgs)}
    if not learning:
        raise ValueError(
            f"nobody learns: of {', '.join(configs) or 'no roles'} at least one must have the settings of an algorithm."
        )
    (first, course), *others = learning.items()
    for role, other in others:
        for name in SHARED_SETTINGS:
            if getattr(other, name) != getattr(course, name):
                values = f"{getattr(course, name)!r} for {first} and {getattr(other, name)!r} for {role}"
                raise ValueError(f"policies that play together agree on {name}: it is {values}.")
    if len(configs) > 1 and course.target_return is not None:
        raise ValueError("target_return is for one policy; with several give total_steps.")
    return course


def require_roles(configs: PolicyConfigs, env: Any) -> None:
    """Raises ValueError unless each agent has one policy."""
    if set(configs) == {ALL}:
        return
    roles = env.roles if is_multi_agent(env) else {}
    if set(configs) != set(roles):
        given, known = ", ".join(configs), ", ".join(roles) or "no roles"
        raise ValueError(
            f"there are policies for {given}; the environment has {known}: give one for each, or one alone for all."
        )


def make_policy(one: TrainingArgs | Frozen | Scripted, course: TrainingArgs, body: Body | None) -> PolicyFactory:
    """What makes its policy for a context."""
    if isinstance(one, Frozen):
        return partial(FrozenPolicy, one, course)
    if isinstance(one, Scripted):
        return partial(ScriptedPolicy, one, course)
    made: PolicyFactory = partial(policy_class(one), one, **({} if body is None else {"body": body}))
    return made
