"""The course of a training: iterations until there were enough steps, or until the target is reached and confirmed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import torch

from gpuvec.engine.device import device as named_device
from gpuvec.learners.algorithms import ALL, kind_of
from gpuvec.learners.args.training import TrainingArgs
from gpuvec.learners.captured.settings import settings
from gpuvec.learners.environments import make_env
from gpuvec.learners.evaluate import evaluate, of_many_agents
from gpuvec.learners.learner import Learner, Made
from gpuvec.learners.networks.actor_critic import Body
from gpuvec.learners.opponents import Frozen, FrozenPolicy, Scripted, ScriptedPolicy
from gpuvec.learners.seeds import CONFIRMATION, stream_seed

ITERATIONS_TO_CONFIRM = 8  # after an evaluation that fell short of the target, until the next
COURSE = ("env", "params", "backend", "seed", "device", "num_envs", "num_steps", "total_steps", "target_return", "threads")
"""Settings in which all policies of a training agree."""

Plan = Mapping[str, TrainingArgs | Frozen | Scripted]
"""{role: its settings, which tell the algorithm, or an opponent that does not learn}."""


class Result(NamedTuple):
    """What `train` returns."""

    policies: dict[str, TrainingArgs | Frozen | Scripted]  # with nothing left open; {"all": ...} for one that all share
    networks: dict[str, Any]  # of those that have one, as `players.Acting`
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
    args: TrainingArgs | Plan,
    on_iteration: Callable[[Learner, dict[str, float]], None] | None = None,
    checkpoint: Mapping[str, Any] | None = None,
    body: Body | Mapping[str, Body] | None = None,
    on_phase: Callable[[str], None] | None = None,
) -> Result:
    """Trains until `args.total_steps`, or until `args.target_return` is reached.

    Args:
        args: the settings, which tell the algorithm; for several policies those of each role, or an opponent.
        on_iteration: called after each iteration with the learner and the metrics.
        checkpoint: where to go on: of the same environment, algorithms and networks; other settings may differ.
        body: makes a network of one's own, see `networks.actor_critic`, and for DDPG `networks.deterministic`; with several
            policies {role: body}.
        on_phase: called with a few words when something begins that may take long, before the first iteration ends.

    Raises:
        ValueError, TypeError, DeviceError, StateError: settings, a body, a device or a checkpoint that do not fit.
        NonFiniteError: an iteration met a number that is not finite; `on_iteration` does not see it.
    """
    plan = args if isinstance(args, Mapping) else {ALL: args}
    device = named_device(agreed(plan).device)
    plan = {role: one.resolved(str(device)) if isinstance(one, TrainingArgs) else one for role, one in plan.items()}
    course = agreed(plan)
    env_args: dict[str, Any] = {"device": course.device, "output": "torch", "autoreset_mode": "SameStep", "buffers": 1}
    env_args["backend"] = course.backend
    with (
        settings(course.device, course.threads),
        closing(make_env(course.env, course.num_envs or 1, course.params, **env_args)) as env,
    ):
        announce = on_phase or (lambda text: None)
        announce("compiling the environment's reset, and making the networks")
        learner = learner_of(plan, env, body)
        if checkpoint is not None:
            learner.load_state_dict(checkpoint)
        if course.device != "cpu":
            announce("compiling kernels, and capturing CUDA graphs")
            learner.capture()
        announce("compiling what the first iteration needs")

        def memory() -> int:
            """Bytes of the GPU that this process has taken for arrays."""
            return 0 if device.kind == "cpu" else torch.cuda.memory_reserved(device.ordinal) + device.pooled_bytes()

        history: list[dict[str, float]] = []
        before = time.perf_counter()
        while learner.iteration < course.iterations:
            learner.iterate()
            metrics = learner.read()
            now, done = time.perf_counter(), learner.iteration
            took, before = now - before, now
            learner.seconds += took
            progress = {"iteration": done, "steps": done * course.batch_size, "seconds": learner.seconds}
            progress |= {"steps_per_second": course.batch_size / took, "gpu_memory": float(memory())}
            history.append({**progress, **metrics})
            reached = False
            if course.target_return is not None and metrics["last_return"] >= course.target_return and done >= learner.confirm:
                # Those episodes began under older policies, and a policy that has nothing left to learn drifts.
                returns = evaluate(
                    learner.policy.network,
                    course.env,
                    seed=stream_seed(course.seed, CONFIRMATION),
                    device=course.device,
                    params=course.params,
                )
                reached = float(returns.mean()) >= course.target_return
                learner.confirm = done + ITERATIONS_TO_CONFIRM
            if on_iteration is not None:
                on_iteration(learner, history[-1])
            if reached:
                break
        networks = {role: p.network for role, p in learner.policies.items() if p.network is not None}
        for network in networks.values():
            for p in network.parameters():  # of which fused kernels have views with gaps
                p.data = p.data.contiguous()
        return Result(plan, networks, history, learner.state_dict())


def learner_of(args: TrainingArgs | Plan, env: Any, body: Body | Mapping[str, Body] | None = None) -> Learner:
    """The learner that `train` lets go on; its settings are resolved, and `env` is as `Learner` takes it.

    Raises:
        ValueError: policies, or bodies, that do not fit the environment or each other.
    """
    plan = args if isinstance(args, Mapping) else {ALL: args}
    bodies = body if isinstance(body, Mapping) else {} if body is None else dict.fromkeys(plan, body)
    for role in bodies:
        one = plan.get(role)
        if not isinstance(one, TrainingArgs):
            raise ValueError(f"a body of one's own goes with the settings of an algorithm, which {role} has not.")
    require_roles(plan, env)
    course = agreed(plan)
    return Learner(course, env, {role: seated(one, course, bodies.get(role)) for role, one in plan.items()})


def agreed(plan: Plan) -> TrainingArgs:
    """The settings of the course, which are those of each policy that learns.

    Raises:
        ValueError: there is none, or they differ.
    """
    learning = {role: one for role, one in plan.items() if isinstance(one, TrainingArgs)}
    if not learning:
        raise ValueError(
            f"nobody learns: of {', '.join(plan) or 'no roles'} at least one must have the settings of an algorithm."
        )
    (first, course), *others = learning.items()
    for role, other in others:
        for name in COURSE:
            if getattr(other, name) != getattr(course, name):
                values = f"{getattr(course, name)!r} for {first} and {getattr(other, name)!r} for {role}"
                raise ValueError(f"policies that play together agree on {name}: it is {values}.")
    if len(plan) > 1 and course.target_return is not None:
        raise ValueError("target_return is for one policy; with several give total_steps.")
    return course


def require_roles(plan: Plan, env: Any) -> None:
    """Raises ValueError unless each agent has one policy."""
    if set(plan) == {ALL}:
        return
    roles = env.roles if of_many_agents(env) else {}
    if set(plan) != set(roles):
        given, known = ", ".join(plan), ", ".join(roles) or "no roles"
        raise ValueError(
            f"there are policies for {given}; the environment has {known}: give one for each, or one alone for all."
        )


def seated(one: TrainingArgs | Frozen | Scripted, course: TrainingArgs, body: Body | None) -> Made:
    """What makes its policy for a seat."""
    if isinstance(one, Frozen):
        return partial(FrozenPolicy, one, course)
    if isinstance(one, Scripted):
        return partial(ScriptedPolicy, one, course)
    made: Made = partial(kind_of(one), one, **({} if body is None else {"body": body}))
    return made
