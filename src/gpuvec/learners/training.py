"""The course of a training: iterations until there were enough steps, or until the target is reached and confirmed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, NamedTuple

import gymnasium as gym
import torch

from gpuvec.engine.device import device as named_device
from gpuvec.learners.algorithms import learner_of, name_of
from gpuvec.learners.args.training import TrainingArgs
from gpuvec.learners.evaluate import evaluate, one_agent_a_row
from gpuvec.learners.learner import Learner
from gpuvec.learners.networks.actor_critic import Body
from gpuvec.learners.settings import settings

ITERATIONS_TO_CONFIRM = 8  # after an evaluation that fell short of the target, until the next


class Result(NamedTuple):
    """What `train` returns."""

    args: TrainingArgs  # with nothing left open
    network: Any  # as `players.Acting`
    history: list[dict[str, float]]  # the metrics of each iteration
    checkpoint: dict[str, Any]


def train(
    args: TrainingArgs,
    on_iteration: Callable[[Learner, dict[str, float]], None] | None = None,
    checkpoint: Mapping[str, Any] | None = None,
    body: Body | None = None,
) -> Result:
    """Trains until `args.total_steps`, or until `args.target_return` is reached.

    Args:
        args: the settings, which tell the algorithm.
        on_iteration: called after each iteration with the learner and the metrics.
        checkpoint: where to go on: of the same environment, algorithm and network; other settings may differ.
        body: for PPO and A2C, makes a network of one's own: see `networks.actor_critic`.

    Raises:
        ValueError, TypeError, DeviceError, StateError: settings, a body, a device or a checkpoint that do not fit.
        NonFiniteError: an iteration met a number that is not finite; `on_iteration` does not see it.
    """
    if body is not None and name_of(args) == "ddpg":
        raise ValueError("a body of one's own goes with ppo and a2c; ddpg makes its networks as `hidden` says.")
    device = named_device(args.device)
    args = args.resolved(str(device))
    env_args: dict[str, Any] = {"device": args.device, "output": "torch", "autoreset_mode": "SameStep", "buffers": 1}
    env_args |= args.params
    with settings(args.device, args.threads), closing(gym.make_vec(args.env, args.num_envs or 1, **env_args)) as env:
        learner: Learner = learner_of(args)(args, one_agent_a_row(env), *([] if body is None else [body]))
        if checkpoint is not None:
            learner.load_state_dict(checkpoint)
        if args.device != "cpu":
            learner.capture()

        def memory() -> int:
            """Bytes of the GPU that this process has taken for arrays."""
            return 0 if device.kind == "cpu" else torch.cuda.memory_reserved(device.ordinal) + device.pooled_bytes()

        history: list[dict[str, float]] = []
        before = time.perf_counter()
        while learner.iteration < args.iterations:
            learner.iterate()
            metrics = learner.read()
            now, done = time.perf_counter(), learner.iteration
            took, before = now - before, now
            learner.seconds += took
            progress = {"iteration": done, "steps": done * args.batch_size, "seconds": learner.seconds}
            progress |= {"steps_per_second": args.batch_size / took, "gpu_memory": float(memory())}
            history.append({**progress, **metrics})
            reached = False
            if args.target_return is not None and metrics["last_return"] >= args.target_return and done >= learner.confirm:
                # Those episodes began under older policies, and a policy that has nothing left to learn drifts.
                returns = evaluate(learner.network, args.env, seed=args.seed + 1, device=args.device, params=args.params)
                reached = float(returns.mean()) >= args.target_return
                learner.confirm = done + ITERATIONS_TO_CONFIRM
            if on_iteration is not None:
                on_iteration(learner, history[-1])
            if reached:
                break
        return Result(args, learner.network, history, learner.state_dict())
