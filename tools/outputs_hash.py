#!/usr/bin/env python3
"""Hashes what environments and trainings compute, to show that a change of the inside changes no bit of it.

    tools/outputs_hash.py --device cpu --to before.json       at the old commit, and again at the new one to after.json
    tools/outputs_hash.py --compare before.json after.json    prints what differs; the exit status is the number of differences

An environment is stepped by the same random actions from the same seed in each autoreset mode, with 1, 33 and 4,096 rows. Its
hash goes over all outputs of every step and, every 100 steps, over the state. Rollouts are hashed where there are any.
A training is hashed by all tensors of its checkpoint and by its metrics, without times, after 20 iterations with one shard and
with eight.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

MODES = ("NextStep", "SameStep", "Disabled")
SIZES = (1, 33, 4096)
STEPS, STEPS_BETWEEN_STATES = 2000, 100
ACTION_BATCHES = 16  # that repeat, since drawing them takes longer than steps
ITERATIONS = 20
UNEQUAL = ("seconds", "per_second", "memory", "time")  # parts of the names of metrics that differ between equal trainings
SMALL: dict[str, Any] = {"num_envs": 64, "num_steps": 32, "hidden": (32, 32)}
GAMES = ("CartPole-v1", "Pendulum-v1", "TagGridWorld-v0", "TagContinuous-v0", "ConnectFour-v0", "SimpleSpeakerListener-v0")


def update(digest: Any, value: Any) -> None:
    """Adds arrays, tensors, numbers and containers of them to a hash, with their names, types and shapes."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            digest.update(str(key).encode())
            update(digest, value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            update(digest, item)
    elif value is None or isinstance(value, str | bool | int | float):
        digest.update(repr(value).encode())
    else:
        array = np.ascontiguousarray(value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value))
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())


def hash_steps(name: str, mode: str, num_envs: int, steps: int, device: str) -> str:
    """Returns the hash of an environment's outputs and states in `steps` steps of random actions."""
    import gymnasium

    import gpuvec  # noqa: F401  # registers the environments

    env: Any = gymnasium.make_vec(f"gpuvec/{name}", num_envs, device=device, output="numpy", autoreset_mode=mode)
    env.action_space.seed(1)
    actions = [env.action_space.sample() for _ in range(ACTION_BATCHES)]
    digest = hashlib.sha256()
    update(digest, env.reset(seed=2))
    for step in range(steps):
        outputs = env.step(actions[step % ACTION_BATCHES])
        update(digest, outputs)
        if (step + 1) % STEPS_BETWEEN_STATES == 0:
            update(digest, env.unwrapped.get_state())
        done = np.asarray(outputs[2]) | np.asarray(outputs[3])
        if mode == "Disabled" and done.any():
            update(digest, env.reset(options={"reset_mask": done}))
    env.close()
    return digest.hexdigest()


def hash_rollouts(name: str, num_envs: int, device: str) -> str:
    """Returns the hash of three rollouts of 32 steps; "" if the environment has none."""
    import gymnasium

    import gpuvec
    from gpuvec.errors import GpuvecError

    env: Any = gymnasium.make_vec(f"gpuvec/{name}", num_envs, device=device, output="numpy", autoreset_mode="SameStep")
    env.reset(seed=3)
    digest = hashlib.sha256()
    try:
        for _ in range(3):
            update(digest, tuple(env.rollout(32)))
    except (GpuvecError, NotImplementedError, AttributeError, ValueError) as error:
        print(f"no rollouts of {name} ({gpuvec.__version__}): {error}", file=sys.stderr)
        return ""
    finally:
        env.close()
    return digest.hexdigest()


def hash_training(algorithm: str, name: str, shards: int, device: str) -> str:
    """Returns the hash of a training's checkpoint and metrics."""
    from gpuvec.learners.algorithms import args_class
    from gpuvec.learners.environments import policy_roles
    from gpuvec.learners.training import train

    settings = {**SMALL, "num_iterations": ITERATIONS, "evaluate_every": 7, "evaluate_episodes": 8}
    if algorithm in ("ddpg", "td3"):
        settings |= {"learning_starts": 64 * 32 * 2, "batch_size": 256, "buffer_size": 64 * 32 * 8, "gradient_steps": 3}
    elif algorithm == "ppo":
        settings |= {"num_minibatches": 2, "update_epochs": 2}
    args = args_class(algorithm)(env=f"gpuvec/{name}", device=device, seed=4, **settings)
    result = train(dict.fromkeys(policy_roles(args.env, {}, algorithm), args), shards=shards)
    digest = hashlib.sha256()
    update(digest, result.checkpoint["policies"])
    for metrics in result.history:
        update(digest, {key: value for key, value in metrics.items() if not any(part in key for part in UNEQUAL)})
    return digest.hexdigest()


def list_tasks(arguments: argparse.Namespace) -> Iterator[tuple[str, Callable[..., str], tuple[Any, ...]]]:
    """Yields (the name of the hash, the function that computes it, its arguments)."""
    from gpuvec.registration import registered_envs

    device, names = arguments.device, list(registered_envs("gpuvec"))
    for name, num_envs, mode in itertools.product(names, sorted(arguments.sizes, reverse=True), MODES):
        yield f"steps.{name}.{mode}.{num_envs}", hash_steps, (name, mode, num_envs, arguments.steps, device)
    for name in names:
        yield f"rollouts.{name}", hash_rollouts, (name, 33, device)
    for name, shards in itertools.product(GAMES, (1, 8)):
        algorithms = ("ppo", "a2c", "ddpg", "td3") if name == "Pendulum-v1" else ("ppo", "a2c")
        for algorithm in algorithms:
            yield f"training.{algorithm}.{name}.{shards}", hash_training, (algorithm, name, shards, device)


def attempt(task: tuple[str, Callable[..., str], tuple[Any, ...]]) -> tuple[str, str, float]:
    """Returns the name of a hash, the hash or the text of an error, and the seconds that it took."""
    name, function, inputs = task
    start = time.perf_counter()
    try:
        value = function(*inputs)
    except Exception as error:  # noqa: BLE001  # other hashes must not be lost
        value = f"{type(error).__name__}: {error}"
    return name, value, time.perf_counter() - start


def compare(before: Path, after: Path) -> int:
    """Prints the hashes that differ or that one of both files does not have, and returns their number."""
    old, new = (json.loads(path.read_text()) for path in (before, after))
    differing = [name for name in sorted(old | new) if old.get(name) != new.get(name)]
    for name in differing:
        print(f"{name}: {old.get(name)} before, {new.get(name)} after")
    print(f"{len(old | new) - len(differing)} hashes are equal, {len(differing)} differ")
    return len(differing)


def main() -> int:
    """Runs the command, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--to", type=Path, default=Path("outputs.json"))
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of the hashes to compute")
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"))
    arguments = parser.parse_args()
    if arguments.compare:
        return compare(*arguments.compare)
    tasks = [task for task in list_tasks(arguments) if any(part in task[0] for part in arguments.only)]
    hashes: dict[str, str] = {}
    with ProcessPoolExecutor(arguments.parallel, mp_context=get_context("spawn")) as pool:
        for name, value, seconds in pool.map(attempt, tasks):
            print(f"{name:<55} {value[:60]:<60} {seconds:6.1f} s", flush=True)
            hashes[name] = value
            partial = arguments.to.with_suffix(".partial")
            partial.write_text(json.dumps(hashes, indent=1) + "\n")
            partial.replace(arguments.to)
    return sum(": " in value for value in hashes.values())


if __name__ == "__main__":
    sys.exit(main())
