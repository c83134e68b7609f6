"""Small trainings, and the processes of a test that train together as those of torchrun do."""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tests.support import street_env  # noqa: F401  # registers the street

import gpuvec
from gpuvec.cli import main
from gpuvec.errors import GpuvecError
from gpuvec.learners import autoscale
from gpuvec.learners.a2c import A2CArgs
from gpuvec.learners.autoscale import Trial
from gpuvec.learners.ddpg import TD3Args
from gpuvec.learners.ppo import PPOArgs
from gpuvec.learners.shards import heartbeats, inboxes
from gpuvec.learners.training import Result, train

SHARDS = 4
SMALL: dict[str, Any] = {"num_envs": 8, "hidden": (8,), "device": "cpu", "seed": 3}
CART_POLE: dict[str, Any] = {**SMALL, "num_steps": 16, "params": {"max_episode_steps": 9}}
STREET: dict[str, Any] = {
    **SMALL, "num_steps": 16, "num_iterations": 5, "env": "tests/Street-v0",
    "params": {"guards": 2, "walkers": 3, "length": 4, "num_observed": 1, "max_episode_steps": 7},
}  # fmt: skip
EVALUATIONS = {"evaluate_every": 2, "evaluate_episodes": 5}
PPO = PPOArgs(
    **CART_POLE, **EVALUATIONS, num_iterations=6, num_minibatches=2, update_epochs=2, normalize=True, normalize_returns=True,
    target_kl=0.02,
)  # fmt: skip
PPO_COPIES = replace(PPO, num_iterations=4)  # trained as copies that are averaged
A2C = A2CArgs(**CART_POLE, num_iterations=5, shared=True)
TD3 = TD3Args(
    **SMALL, env="gpuvec/Pendulum-v1", num_steps=4, num_iterations=8, batch_size=16, buffer_size=160, learning_starts=64,
    gradient_steps=3, n_step=2, theta=0.15, normalize=True,
)  # fmt: skip
TWO = {
    "guard": PPOArgs(**STREET, **EVALUATIONS, num_minibatches=2, normalize=True),
    "walker": A2CArgs(**STREET, **EVALUATIONS, learning_rate=1e-3),
}
FUSED = PPOArgs(
    env="gpuvec/CartPole-v1", num_envs=256, num_steps=16, num_iterations=6, num_minibatches=2, update_epochs=2, hidden=(32, 32),
    params={"max_episode_steps": 9}, device="cuda", fused=True, seed=3,
)  # fmt: skip
TRAININGS: dict[str, Any] = {"ppo": PPO, "a2c": A2C, "td3": TD3, "two": TWO}
CHECKPOINT_ITERATION = 3
TIMES = ("seconds", "steps_per_second", "gpu_memory")  # metrics that differ between runs


def numbers_of(result: Result) -> dict[str, Any]:
    """Returns what two trainings with the same results have in common."""
    history = [{name: x for name, x in metrics.items() if name not in TIMES} for metrics in result.history]
    return {"history": history, "checkpoint": {**result.checkpoint, "seconds": 0.0}}


def weights_and_history(result: Result) -> dict[str, Any]:
    """Returns what two trainings with the same results have in common, on any device."""
    weights = {name: x.cpu() for name, x in result.networks["all"].state_dict().items()}
    return {"history": numbers_of(result)["history"], "weights": weights}


def train_with_checkpoint(args: Any, **settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the numbers of a training, and its checkpoint after `CHECKPOINT_ITERATION`."""
    checkpoints: list[dict[str, Any]] = []

    def keep(learner: Any, metrics: dict[str, float]) -> None:
        if metrics["iteration"] == CHECKPOINT_ITERATION:
            checkpoints.append(learner.state_dict())

    return numbers_of(train(args, keep, **settings)), checkpoints[0]


def start_processes(task: Callable[[Path], None], count: int, folder: Path, **variables: str) -> list[subprocess.Popen[str]]:
    """Starts processes that call `task(folder)`, a function of a module, as torchrun starts them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    program = f"import sys, pathlib; from {task.__module__} import {task.__name__} as task; task(pathlib.Path(sys.argv[1]))"
    return [
        subprocess.Popen(
            [sys.executable, "-c", program, str(folder)],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank), **variables},
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2],
        )
        for rank in range(count)
    ]  # fmt: skip


def finish(processes: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Waits for processes, and returns (exit status, stdout, stderr) of each."""
    outputs = [process.communicate(timeout=300) for process in processes]
    return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


def train_all(folder: Path) -> None:
    """Runs all trainings in this process, one of several, and saves their numbers; one of them continues from a checkpoint."""
    rank = os.environ["RANK"]
    for name, args in TRAININGS.items():
        torch.save(numbers_of(train(args, shards=SHARDS)), folder / f"{name}-{rank}.pt")
    checkpoint = torch.load(folder / "checkpoint.pt", weights_only=True)
    torch.save(numbers_of(train(PPO, checkpoint=checkpoint, shards=SHARDS)), folder / f"continued-{rank}.pt")
    averaged, saved = train_with_checkpoint(PPO_COPIES, sync="iteration")
    torch.save(averaged, folder / f"averaged-{rank}.pt")
    torch.save(numbers_of(train(PPO_COPIES, checkpoint=saved, sync="iteration")), folder / f"averaged-again-{rank}.pt")
    plain = train(A2C, deterministic_shards=False)
    torch.save(numbers_of(plain), folder / f"plain-{rank}.pt")
    # Process 1 would end it one iteration earlier.
    stopped = train(A2C, lambda learner, metrics: metrics["iteration"] >= (2 if rank == "0" else 1), shards=SHARDS)
    (folder / f"stopped-{rank}.json").write_text(json.dumps([stopped.ended_by, len(stopped.history)]))

    def fail_in_one_process(learner: Any, metrics: dict[str, float]) -> None:
        if rank == "1" and metrics["iteration"] == 2:
            raise OSError("the disk is full")

    def version_of_process() -> Result:
        version, gpuvec.__version__ = gpuvec.__version__, f"{rank}.0"
        try:
            return train(A2C, shards=SHARDS)
        finally:
            gpuvec.__version__ = version

    torch.save(list(autoscaled_sizes()), folder / f"sizes-{rank}.pt")
    command = f"train --algorithm a2c --device cpu --runs {folder}"
    errors = [
        command_error(f"{command} --seed {rank}"),
        command_error(f"{command} --checkpoint-every 1{rank}"),
        command_error(f"{command} --num-envs 9"),
        error_of(version_of_process),
        error_of(lambda: train(replace(A2C, seed=int(rank)), shards=SHARDS)),
        error_of(lambda: train(A2C, shards=SHARDS - 1)),
        error_of(lambda: train(A2C, fail_in_one_process, shards=SHARDS)),
    ]
    (folder / f"errors-{rank}.json").write_text(json.dumps(errors))


def autoscaled_sizes() -> tuple[int, int]:
    """Returns what `autoscale` chooses where the first process is fastest with 64 environments, and the others with 32."""
    best, speed = (64, 2000.0) if os.environ["RANK"] == "0" else (32, 1000.0)

    def run_trial(policies: Any, num_envs: int, num_steps: int, *_: Any) -> Trial:
        return Trial(num_envs, num_steps, speed / (1 + abs(num_envs - best)), 1)

    original, autoscale.run_trial = autoscale.run_trial, run_trial
    try:
        scale = gpuvec.autoscale(A2C, shards=SHARDS, num_steps=4)
    finally:
        autoscale.run_trial = original
    return scale.num_envs, scale.num_steps


def command_error(words: str) -> str:
    """Returns the exit status of a command, and what it prints as an error."""
    errors = io.StringIO()
    with redirect_stderr(errors), redirect_stdout(io.StringIO()):
        status = main(words.split())
    return f"{status} {errors.getvalue()}"


def train_on_gpus(folder: Path) -> None:
    """Runs a training on the GPU of this process, and saves its numbers."""
    torch.save(numbers_of(train(replace(PPO, device="cuda"), shards=SHARDS)), folder / f"gpu-{os.environ['RANK']}.pt")


def train_fused_on_gpus(folder: Path) -> None:
    """Runs trainings by fused kernels on the GPU of this process, and saves their numbers with what they logged.

    Gradients are exchanged through memory of the GPUs, and as if it could not be mapped.
    """
    log, results = io.StringIO(), {}
    logging.basicConfig(level="INFO", stream=log)
    map_inboxes = inboxes._map_inboxes
    for way, settings in (
        ("inboxes", {"shards": SHARDS}), ("plain", {"deterministic_shards": False}),
        ("nccl", {"shards": SHARDS}), ("all-reduce", {"deterministic_shards": False}),
    ):  # fmt: skip
        inboxes._map_inboxes = map_inboxes if way in ("inboxes", "plain") else refuse
        numbers = weights_and_history(train(FUSED, **settings))
        results[way] = {"numbers": numbers, "log": log.getvalue()}
        log.seek(0)
        log.truncate()
    torch.save(results, folder / f"fused-{os.environ['RANK']}.pt")


def refuse(*_: object) -> None:
    """Fails as symmetric memory does where there is none."""
    raise RuntimeError("there is no symmetric memory")


def error_of(function: Callable[[], object]) -> str:
    """Returns the type and the message of the error that a function raises."""
    try:
        function()
    except (GpuvecError, OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def run_command(folder: Path) -> None:
    """Runs the command line with the words in a file of the folder."""
    sys.exit(main(json.loads((folder / "words.json").read_text())))


def run_command_with_quick_heartbeats(folder: Path) -> None:
    """Runs the command line as `run_command`; a process that hangs is lost after about a second."""
    heartbeats.INTERVAL, heartbeats.MAX_SILENT_INTERVALS, heartbeats.SECONDS_TO_LEAVE = 0.1, 10, 1.0
    run_command(folder)
