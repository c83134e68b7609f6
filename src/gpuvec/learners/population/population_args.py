"""The settings of a population. This module imports no torch.

Letters: P agents.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpuvec.declaration_checks import describe_value
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.config.tuned import NUM_ENVS
from gpuvec.learners.metric_names import EPISODE_METRICS

AGENT_SETTINGS = ("learning_rate", "ent_coef", "vf_coef", "gamma", "gae_lambda", "clip", "reward_scale")
"""The settings that may differ between agents."""
MAX_AGENTS = 2**20
MAX_LAYERS = 2
# Settings that a population does not support, and their only value.
UNSUPPORTED = {
    "shared": False, "normalize_returns": False, "precision": "tf32", "compile": False,
    "learning_rate_table": (), "ent_coef_table": (), "target_return": None, "network": None,
}  # fmt: skip
LOSS_METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
METRICS = (*EPISODE_METRICS, *LOSS_METRICS, "grad_norm")
"""The numbers of an agent in an iteration; the names are those of the metrics of a single training."""
RUNNING = -1  # in place of the iteration in which an agent was stopped
FAULTS = ("none", "a reward or a log-probability", "a value or an advantage", "the gradient")
"""What was not finite when an agent was stopped, by its number in `AgentState.fault`."""


@dataclass(frozen=True)
class PopulationArgs:
    """The settings of P agents, each of which trains on its own by PPO.

    Agent k has the random numbers of a single training with the seed `seeds[k]`, so that its training depends neither on P nor
    on the other agents.

    Raises:
        ValueError: a value out of its range, a sequence of a wrong length, or a setting that a population does not support. The
            message names it and what is allowed.
    """

    base: PPOArgs = field(default_factory=PPOArgs)
    """The settings that all agents share, and the values of `AGENT_SETTINGS` that are not in `settings`. `num_envs` and
    `total_steps` are those of one agent. All agents are evaluated at the end of the training, and after every `evaluate_every`
    iterations if it is given. On a CPU, `threads` is the largest number of processes."""
    num_agents: int = 1
    """Number of agents, P."""
    seeds: tuple[int, ...] = ()
    """The seed of each agent; by default those from base.seed to base.seed + P - 1."""
    settings: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """{setting: P values} of the settings in which agents differ."""
    params: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """{parameter of the environment: P values} of the parameters in which the environments of agents differ."""

    def __post_init__(self) -> None:
        if not isinstance(self.base, PPOArgs):
            raise ValueError(f"base must be the settings of PPO, PPOArgs, got {describe_value(self.base)}.")
        if not isinstance(self.seeds, Sequence) or not all(type(seed) is int for seed in self.seeds):
            raise ValueError(f"seeds must be a tuple of integers, got {describe_value(self.seeds)}.")
        for name, columns in {"settings": self.settings, "params": self.params}.items():
            if not isinstance(columns, Mapping) or not all(map(_is_column, columns.values())):
                raise ValueError(f"{name} must be a dict of names and values of the agents, got {describe_value(columns)}.")
        if not isinstance(self.num_agents, int) or isinstance(self.num_agents, bool) or not 1 <= self.num_agents <= MAX_AGENTS:
            raise ValueError(f"num_agents must be an integer from 1 to {MAX_AGENTS:,}, got {self.num_agents!r}.")
        for name, only in UNSUPPORTED.items():
            if getattr(self.base, name) != only:
                raise ValueError(f"a population supports {name}={only!r} only, got {reprlib.repr(getattr(self.base, name))}.")
        if not 1 <= len(self.base.hidden) <= MAX_LAYERS:
            raise ValueError(
                f"a population supports one or two hidden layers, got {self.base.hidden}: nearest is {self.base.hidden[:2]}."
                if self.base.hidden
                else "a population supports one or two hidden layers, got none: nearest is (64,)."
            )
        if unknown := sorted(map(str, set(self.settings) - set(AGENT_SETTINGS))):
            raise ValueError(f"{unknown[0]} cannot differ between agents; {', '.join(AGENT_SETTINGS)} can.")
        if both := sorted(set(self.params) & set(self.base.params)):
            raise ValueError(f"the parameter {both[0]} is in base.params, and in params for each agent: give it once.")
        first = self.base.seed
        object.__setattr__(self, "seeds", tuple(self.seeds) or tuple(range(first, first + self.num_agents)))
        object.__setattr__(self, "settings", {name: _floats(name, column) for name, column in self.settings.items()})
        object.__setattr__(self, "params", {name: tuple(column) for name, column in self.params.items()})
        for name, column in {"seeds": self.seeds, **self.settings, **self.params}.items():
            if len(column) != self.num_agents:
                raise ValueError(
                    f"{name} must have a value for each of the {self.num_agents} agents, got {len(column)} values."
                )
        for name, column in {"seed": self.seeds, **self.settings}.items():
            self._require_range(name, column)

    def _require_range(self, name: str, column: Sequence[float]) -> None:
        """Raises ValueError with the first agent whose value of a setting is out of its range.

        The allowed values of each setting are an interval, so that the extremes are tested.
        """
        infinite = [k for k, value in enumerate(column) if not math.isfinite(value)]
        for k in {*infinite[:1], column.index(min(column)), column.index(max(column))}:
            value: dict[str, Any] = {name: column[k]}
            try:
                replace(self.base, num_envs=None, **value)
            except ValueError as error:
                raise ValueError(f"agent {k}: {error}") from error
            if not math.isfinite(column[k]):
                raise ValueError(f"agent {k}: {name} must be finite, got {column[k]}.")

    def resolved(self, device: str) -> PopulationArgs:
        """Returns the settings for `device`, "cpu" or "cuda:<index>", with values in place of None and "auto"."""
        base = replace(self.base, num_envs=self.base.num_envs or NUM_ENVS)
        return replace(self, base=base.resolved(device))

    def column(self, name: str) -> tuple[float, ...]:
        """Returns the P values of the setting `name`, one of `AGENT_SETTINGS`."""
        return tuple(self.settings.get(name, (getattr(self.base, name),) * self.num_agents))

    def agent(self, k: int) -> PPOArgs:
        """Returns the settings of agent `k` as those of a single training."""
        own: dict[str, Any] = {name: column[k] for name, column in self.settings.items()}
        params = {**self.base.params, **{name: column[k] for name, column in self.params.items()}}
        return replace(self.base, seed=self.seeds[k], params=params, **own)

    def select(self, agents: Sequence[int]) -> PopulationArgs:
        """Returns the settings of some agents, as a population of them alone.

        Args:
            agents: their numbers, at least one.
        """
        return replace(
            self,
            num_agents=len(agents),
            seeds=tuple(self.seeds[k] for k in agents),
            settings={name: [column[k] for k in agents] for name, column in self.settings.items()},
            params={name: [column[k] for k in agents] for name, column in self.params.items()},
        )


def _is_column(values: object) -> bool:
    return isinstance(values, Sequence | np.ndarray) and not isinstance(values, str | bytes)


def _floats(name: str, column: Sequence[Any]) -> tuple[float, ...]:
    """The values of a setting as floats.

    Raises:
        ValueError: a value is no number.
    """
    try:
        return tuple(map(float, column))
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must have a number for each agent, got {describe_value(column)}.") from error
