"""Settings that suit an environment better than the defaults of `Args`; `gpuvec train` starts from them."""

from __future__ import annotations

from typing import Any, NamedTuple

from gpuvec.engine.device import device as named_device
from gpuvec.learners.algorithms import args_of
from gpuvec.learners.args.training import TrainingArgs


class Tuned(NamedTuple):
    """What differs from the defaults."""

    num_envs: tuple[int, int]  # on a CPU, on a GPU
    iterations: tuple[int, int]  # of rollouts, likewise
    settings: dict[str, Any]


# A rollout holds whole episodes, as all end together; to come near a runner pays within a few steps or not at all.
TAG: dict[str, Any] = {
    "num_steps": 200, "minibatches": 32, "learning_rate": 2e-3, "gamma": 0.9, "gae_lambda": 0.8, "entropy_weight": 0.0,
    "hidden": (128, 128), "normalize": True,
}  # fmt: skip
# Starts all over the valley meet the goal by chance; where a game starts it takes a swing that no chance finds.
VALLEY: dict[str, Any] = {"normalize": True, "params": {"low": -1.2, "high": 0.45}}
TUNED = {
    ("gpuvec/CartPole-v1", "ppo"): Tuned((128, 4096), (128, 64), {"num_steps": 32, "minibatches": 8}),
    ("gpuvec/CartPole-v1", "a2c"): Tuned(
        (128, 1024),
        (512, 488),
        {"num_steps": 32, "learning_rate": 3e-3, "gae_lambda": 0.95, "normalize_returns": True},
    ),
    ("gpuvec/Acrobot-v1", "ppo"): Tuned((128, 1024), (128, 128), {"num_steps": 32, "normalize": True}),
    ("gpuvec/MountainCar-v0", "ppo"): Tuned((128, 1024), (256, 306), {**VALLEY, "num_steps": 128, "minibatches": 8}),
    ("gpuvec/Pendulum-v1", "ddpg"): Tuned(
        (64, 64), (782, 782), {"num_steps": 4, "updates": 8, "minibatch": 256, "capacity": 200_000}
    ),
    ("gpuvec/MountainCarContinuous-v0", "ddpg"): Tuned(
        (256, 256),
        (977, 977),
        {"num_steps": 8, "n_step": 8, "updates": 8, "minibatch": 1024, "sigma": 0.5, "theta": 0.15, "normalize": True},
    ),
    # All agents have the same policy, so each is told its role; and its heading, without which it cannot steer.
    ("gpuvec/TagContinuous-v0", "ppo"): Tuned((32, 256), (64, 40), {**TAG, "params": {"observe_self": True}}),
    ("gpuvec/TagGridWorld-v0", "ppo"): Tuned((32, 256), (64, 40), TAG),
}  # fmt: skip


def tuned(env: str = "gpuvec/CartPole-v1", device: str = "auto", algorithm: str = "ppo", **given: Any) -> TrainingArgs:
    """The settings for `env` on that device, with those that are `given`; the parameters given go over the others.

    Raises:
        ValueError, DeviceError: a value out of its range, or a device that is not there.
    """
    found, kind = TUNED.get((env.rpartition(":")[2], algorithm)), args_of(algorithm)
    if found is None:
        return kind(env=env, device=device, **given)
    on_gpu = named_device(device).kind != "cpu"
    settings: dict[str, Any] = {"num_envs": found.num_envs[on_gpu], **found.settings, **given}
    settings["params"] = {**found.settings.get("params", {}), **given.get("params", {})}
    if settings.get("total_steps") is None:
        settings["total_steps"] = found.iterations[on_gpu] * settings["num_envs"] * settings["num_steps"]
    return kind(env=env, device=device, **settings)
