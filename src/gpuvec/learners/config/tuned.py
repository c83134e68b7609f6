"""Settings that suit an environment better than the defaults; `gpuvec train` uses them in place of the defaults.

The file `tuned_populations.json` has those that searches found for agents of a population, which have few environments each. It
has an entry for each environment, which `tools/write_tuned.py` writes: {"settings": those that differ from the defaults,
"search": what was searched, and what the settings reached on fresh seeds}. This module imports no torch.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

from gpuvec.engine.backends.device import parse_device
from gpuvec.learners.algorithms import args_class
from gpuvec.learners.config.setting_types import with_tuples
from gpuvec.learners.config.training_config import PPOArgs, TrainingArgs

NUM_ENVS = 16
"""The number of environments of an agent, if nothing else says it."""
FILE = Path(__file__).with_name("tuned_populations.json")


class TunedSettings(NamedTuple):
    """The settings that differ from the defaults.

    Attributes:
        settings: on all devices.
        cpu: on a CPU.
        gpu: on a GPU.
        by_role: whether each role has a policy, although one policy could act for all.
    """

    settings: dict[str, Any]
    cpu: dict[str, Any] = {}  # noqa: RUF012  # is not mutated
    gpu: dict[str, Any] = {}  # noqa: RUF012  # is not mutated
    by_role: bool = False


# All episodes end together, so that a rollout of 200 steps has whole episodes. The discount factor is low because a tagger that
# approaches a runner is rewarded within a few steps or not at all.
TAG: dict[str, Any] = {
    "num_steps": 200, "num_minibatches": 32, "learning_rate": 2e-3, "gamma": 0.9, "gae_lambda": 0.8, "ent_coef": 0.0,
    "hidden": (128, 128), "normalize": True,
}  # fmt: skip
# From nearly at rest, random actions rarely swing up within an episode, and without a success the policy does not improve.
# With a wide range of initial states early successes are likely.
WIDE_INITIAL_STATES: dict[str, Any] = {"params": {"low": -1.0, "high": 1.0}}
# From initial positions in the whole valley random actions reach the goal in some episodes; from the default ones they do not.
WHOLE_VALLEY: dict[str, Any] = {"normalize": True, "params": {"low": -1.2, "high": 0.45}}
# One policy plays both sides of a game of two. With a large entropy bonus it meets many positions, also those of other players.
SELF_PLAY: dict[str, Any] = {
    "hidden": (128,), "activation": "relu", "learning_rate": 1e-3, "ent_coef": 0.05, "num_minibatches": 8,
}  # fmt: skip
# Observations of an economy have very different sizes, and many agents share a policy.
ECONOMY: dict[str, Any] = {
    "num_steps": 20, "num_minibatches": 8, "hidden": (128, 128), "learning_rate": 1e-3, "gamma": 0.95, "ent_coef": 0.0,
    "normalize": True,
}  # fmt: skip
TUNED_SETTINGS = {
    ("gpuvec/CartPole-v1", "ppo"): TunedSettings({"num_iterations": 64, "num_minibatches": 8}),
    ("gpuvec/CartPole-v1", "a2c"): TunedSettings(
        {"num_steps": 32, "learning_rate": 3e-3, "gae_lambda": 0.95, "normalize_returns": True},
        cpu={"num_iterations": 512},
        gpu={"num_envs": 1024, "num_iterations": 488},
    ),
    ("gpuvec/Acrobot-v1", "ppo"): TunedSettings({**WIDE_INITIAL_STATES, "normalize": True}, gpu={"num_envs": 1024}),
    ("gpuvec/MountainCar-v0", "ppo"): TunedSettings(
        {**WHOLE_VALLEY, "num_steps": 128, "num_minibatches": 8},
        cpu={"num_iterations": 256},
        gpu={"num_envs": 1024, "num_iterations": 306},
    ),
    # The defaults of DDPG are those that suit these two.
    ("gpuvec/Pendulum-v1", "ddpg"): TunedSettings({}),
    ("gpuvec/MountainCarContinuous-v0", "ddpg"): TunedSettings({}),
    # All agents share a policy, so observations contain the agent's role, and its heading, without which it cannot steer.
    ("gpuvec/TagContinuous-v0", "ppo"): TunedSettings(
        {**TAG, "params": {"observe_self": True}},
        cpu={"num_envs": 32, "num_iterations": 64},
        gpu={"num_envs": 256, "num_iterations": 40},
    ),
    ("gpuvec/TagGridWorld-v0", "ppo"): TunedSettings(
        TAG, cpu={"num_envs": 32, "num_iterations": 64}, gpu={"num_envs": 256, "num_iterations": 40}
    ),
    # On a GPU: a policy that keeps the ball in play, but in a loop past the last bricks, has to explore to find them.
    ("gpuvec/Breakout-v0", "ppo"): TunedSettings(
        {"hidden": (128,), "activation": "relu"},
        cpu={"num_envs": 64, "num_steps": 64, "num_minibatches": 8, "num_iterations": 128},
        gpu={"num_envs": 1024, "num_minibatches": 32, "num_iterations": 306, "ent_coef": 0.02},
    ),
    ("gpuvec/SimpleSpread-v0", "ppo"): TunedSettings(
        {"num_steps": 25, "num_minibatches": 8, "hidden": (128, 128), "activation": "relu", "gamma": 0.9, "gae_lambda": 0.9,
         "learning_rate": 2e-3, "ent_coef": 0.0},
        cpu={"num_iterations": 300},
        gpu={"num_envs": 512, "num_iterations": 600},
    ),
    # Each role has a policy. The speaker learns only from what the listener does, so that both need an entropy bonus. Unless
    # its observations are normalised they differ little, so do its words, and the listener learns to ignore them.
    ("gpuvec/SimpleSpeakerListener-v0", "ppo"): TunedSettings(
        {"num_steps": 25, "num_minibatches": 8, "hidden": (128, 128), "activation": "relu", "gamma": 0.9, "gae_lambda": 0.9,
         "learning_rate": 1e-3, "ent_coef": 0.01, "normalize": True, "num_iterations": 300},
        cpu={"num_envs": 256},
        gpu={"num_envs": 1024},
    ),
    ("gpuvec/ConnectFour-v0", "ppo"): TunedSettings(
        SELF_PLAY,
        cpu={"num_envs": 256, "num_iterations": 160},
        gpu={"num_envs": 4096, "num_iterations": 320, "num_minibatches": 16, "hidden": (128, 128)},
    ),
    # A policy of all animals learns what sheep do, which are many, and its wolves look for grass. A wolf eats a sheep that it
    # sees within a few steps or not at all.
    ("gpuvec/Predators-v0", "ppo"): TunedSettings(
        {"num_minibatches": 16, "hidden": (128,), "activation": "relu", "gamma": 0.8, "gae_lambda": 0.9, "learning_rate": 1e-3},
        cpu={"num_envs": 16, "num_iterations": 64},
        gpu={"num_envs": 128, "num_iterations": 40},
        by_role=True,
    ),
    ("gpuvec/RICE-N-v0", "ppo"): TunedSettings(
        ECONOMY, cpu={"num_envs": 32, "num_iterations": 100}, gpu={"num_envs": 256, "num_iterations": 150}
    ),
    # Both roles learn by these settings. An early closure saves lives until vaccines come, after 300 days. With a discount of
    # 0.99 states open at once, so that a GPU trains without a discount, with long rollouts.
    ("gpuvec/EpidemicEconomy-v0", "ppo"): TunedSettings(
        {**ECONOMY, "ent_coef": 0.01},
        cpu={"num_envs": 16, "num_steps": 60, "num_iterations": 100, "gamma": 0.99},
        gpu={"num_envs": 64, "num_steps": 180, "num_minibatches": 16, "num_iterations": 100, "gamma": 1.0, "gae_lambda": 0.98,
             "normalize_returns": True},
    ),
}  # fmt: skip


def find_tuned_settings(env: str, algorithm: str = "ppo") -> TunedSettings:
    """Returns the settings that differ from the defaults of `algorithm`; none for an environment that is not tuned.

    Args:
        env: id of an environment.
        algorithm: name of an algorithm.
    """
    return TUNED_SETTINGS.get((env.rpartition(":")[2], algorithm), TunedSettings({}))


@functools.cache
def tuned_populations() -> dict[str, dict[str, Any]]:
    """Returns {id of an environment: its entry}."""
    entries: dict[str, dict[str, Any]] = json.loads(FILE.read_text())
    return entries


def tuned_for_population(env: str = "gpuvec/CartPole-v1", device: str = "auto", **overrides: Any) -> PPOArgs:
    """Returns the settings of PPO that suit an agent of a population in `env`.

    They are those that a search found; where none was made, those of a single training with `NUM_ENVS` environments.

    Args:
        env: id of an environment.
        device: "auto", "cpu", "cuda" or "cuda:1".
        overrides: settings that replace the tuned ones; parameters in `params` replace single parameters.

    Raises:
        ValueError: a value out of its range.
        DeviceError: as `tuned`.
    """
    entry = tuned_populations().get(env.rpartition(":")[2])
    if entry is None:
        args = tuned(env, device, **{"num_envs": NUM_ENVS, **overrides})
        assert isinstance(args, PPOArgs), "the default algorithm is PPO"
        return args
    settings = with_tuples(entry["settings"])
    params = {**settings.get("params", {}), **overrides.pop("params", {})}
    return PPOArgs(env=env, device=device, **{**settings, **overrides, "params": params})


def tuned(env: str = "gpuvec/CartPole-v1", device: str = "auto", algorithm: str = "ppo", **overrides: Any) -> TrainingArgs:
    """Returns the settings of `algorithm` that suit `env` on `device`.

    Args:
        env: id of an environment.
        device: "auto", "cpu", "cuda" or "cuda:1".
        algorithm: name of an algorithm.
        overrides: settings that replace the tuned ones; parameters in `params` replace single parameters.

    Raises:
        ValueError: a value out of its range, or no such algorithm.
        DeviceError: a device that does not exist, if tuned settings depend on it; otherwise training raises it.
    """
    tuned_settings = find_tuned_settings(env, algorithm)
    settings, params = tuned_settings.settings, overrides.pop("params", {})
    settings = {**settings, "params": {**settings.get("params", {}), **params}}
    # Only then, because parsing the device loads CuPy, which a list of the defaults does not need.
    if tuned_settings.cpu != tuned_settings.gpu:
        settings |= tuned_settings.cpu if parse_device(device).kind == "cpu" else tuned_settings.gpu
    return args_class(algorithm)(env=env, device=device, **{**settings, **overrides})
