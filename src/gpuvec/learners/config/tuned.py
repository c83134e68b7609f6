"""Settings that suit an environment better than the defaults; `gpuvec train` starts from them."""

from __future__ import annotations

from typing import Any, NamedTuple

from gpuvec.engine.backends.device import parse_device
from gpuvec.learners.algorithms import args_class
from gpuvec.learners.config.training_config import TrainingArgs


class TunedSettings(NamedTuple):
    """What differs from the defaults."""

    settings: dict[str, Any]
    cpu: dict[str, Any] = {}  # noqa: RUF012  # never written to
    gpu: dict[str, Any] = {}  # noqa: RUF012  # likewise


# A rollout holds whole episodes, as all end together; to come near a runner pays within a few steps or not at all.
TAG: dict[str, Any] = {
    "num_steps": 200, "num_minibatches": 32, "learning_rate": 2e-3, "gamma": 0.9, "gae_lambda": 0.8, "ent_coef": 0.0,
    "hidden": (128, 128), "normalize": True,
}  # fmt: skip
# Hanging nearly still it may take chance longer than an episode to swing up, and a policy that never saw it done gives up.
MOVING: dict[str, Any] = {"params": {"low": -1.0, "high": 1.0}}
# Starts all over the valley meet the goal by chance; where a game starts it takes a swing that no chance finds.
VALLEY: dict[str, Any] = {"normalize": True, "params": {"low": -1.2, "high": 0.45}}
TUNED_SETTINGS = {
    ("gpuvec/CartPole-v1", "ppo"): TunedSettings({"num_iterations": 64, "num_minibatches": 8}),
    ("gpuvec/CartPole-v1", "a2c"): TunedSettings(
        {"num_steps": 32, "learning_rate": 3e-3, "gae_lambda": 0.95, "normalize_returns": True},
        cpu={"num_iterations": 512},
        gpu={"num_envs": 1024, "num_iterations": 488},
    ),
    ("gpuvec/Acrobot-v1", "ppo"): TunedSettings({**MOVING, "normalize": True}, gpu={"num_envs": 1024}),
    ("gpuvec/MountainCar-v0", "ppo"): TunedSettings(
        {**VALLEY, "num_steps": 128, "num_minibatches": 8},
        cpu={"num_iterations": 256},
        gpu={"num_envs": 1024, "num_iterations": 306},
    ),
    ("gpuvec/Pendulum-v1", "ddpg"): TunedSettings(
        {"num_envs": 64, "num_steps": 4, "num_iterations": 782, "gradient_steps": 8, "batch_size": 256, "buffer_size": 200_000}
    ),
    ("gpuvec/MountainCarContinuous-v0", "ddpg"): TunedSettings(
        {"num_envs": 256, "num_steps": 8, "num_iterations": 977, "n_step": 8, "gradient_steps": 8, "batch_size": 1024,
         "sigma": 0.5, "theta": 0.15, "normalize": True}
    ),
    # All agents have the same policy, so each is told its role; and its heading, without which it cannot steer.
    ("gpuvec/TagContinuous-v0", "ppo"): TunedSettings(
        {**TAG, "params": {"observe_self": True}},
        cpu={"num_envs": 32, "num_iterations": 64},
        gpu={"num_envs": 256, "num_iterations": 40},
    ),
    ("gpuvec/TagGridWorld-v0", "ppo"): TunedSettings(
        TAG, cpu={"num_envs": 32, "num_iterations": 64}, gpu={"num_envs": 256, "num_iterations": 40}
    ),
}  # fmt: skip


def tuned(env: str = "gpuvec/CartPole-v1", device: str = "auto", algorithm: str = "ppo", **given: Any) -> TrainingArgs:
    """The settings for `env` on that device, with those that are `given`; the parameters given go over the others.

    Raises:
        ValueError: a value out of its range.
        DeviceError: a device that is not there, if settings hang on which it is; else training says so.
    """
    found = TUNED_SETTINGS.get((env.rpartition(":")[2], algorithm), TunedSettings({}))
    settings = {**found.settings, "params": {**found.settings.get("params", {}), **given.pop("params", {})}}
    if found.cpu != found.gpu:  # to ask for the device loads CuPy, which a list of the defaults should not take
        settings |= found.cpu if parse_device(device).kind == "cpu" else found.gpu
    return args_class(algorithm)(env=env, device=device, **{**settings, **given})
