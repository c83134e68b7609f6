"""The settings of a search. This module imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from gpuvec.learners.config.training_config import MAX_COUNT, PPOArgs
from gpuvec.learners.config.tuned import NUM_ENVS
from gpuvec.learners.population.population_args import MAX_AGENTS
from gpuvec.learners.population.search.search_space import SamplerName, SearchParameter, require_search_space
from gpuvec.learners.runs.comparison import reward_threshold

EVALUATIONS = 16
"""The number of evaluations of a confirmation, if `evaluate_every` does not say it."""


@dataclass(frozen=True)
class SweepArgs:
    """The settings of a search.

    Raises:
        ValueError: a value out of its range; the message names it and what is allowed.
    """

    base: PPOArgs = field(default_factory=PPOArgs)
    """The settings that all trials share. `num_envs` and `total_steps` are those of one agent. All agents are evaluated at the
    end of each part, and after every `evaluate_every` iterations of the confirmation; by default 16 times in it if the
    environment has a reward threshold."""
    parameters: tuple[SearchParameter, ...] = ()
    """The settings that are varied."""
    num_trials: int = 64
    """Number of trials, N."""
    num_seeds: int = 1
    """Number of seeds of each trial, S, which are the same for all trials."""
    sampler: SamplerName = "sobol"
    """How trials are drawn."""
    halvings: int = 2
    """How often the worse trials end; 0 to train all of them to the end."""
    reduction: int = 4
    """The factor by which the number of trials decreases, and the length of their training increases."""
    num_confirmed: int = 3
    """Number of the best trials that are trained again, from the beginning, on fresh seeds."""
    confirmation_seeds: int = 10
    """Number of these seeds."""

    def __post_init__(self) -> None:
        minima = {"num_trials": 1, "num_seeds": 1, "halvings": 0, "reduction": 2, "num_confirmed": 1, "confirmation_seeds": 1}
        for name, minimum in minima.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
                raise ValueError(f"{name} must be an integer of at least {minimum}, got {value!r}.")
        agents = {"trials": self.num_trials * self.num_seeds, "confirmed trials": self.num_confirmed * self.confirmation_seeds}
        for name, count in agents.items():
            if count > MAX_AGENTS:
                raise ValueError(f"the {name} need {count:,} agents, and at most {MAX_AGENTS:,} train at once.")
        if self.halvings > math.log(MAX_COUNT, self.reduction):
            raise ValueError(f"reduction ** halvings must be at most {MAX_COUNT:,}: give fewer halvings.")
        if self.sampler not in ("sobol", "random"):
            raise ValueError(f"sampler must be sobol or random, got {self.sampler!r}.")
        require_search_space(self.parameters, self.base)

    @property
    def confirmation_interval(self) -> int | None:
        """The number of iterations between two evaluations of the confirmation, which is the resolution of its steps.

        None for an evaluation at the end alone, if the environment has no threshold to reach.
        """
        if math.isnan(reward_threshold(self.base.env)):
            return self.base.evaluate_every
        return self.base.evaluate_every or max(1, self._iterations // EVALUATIONS)

    @property
    def _iterations(self) -> int:
        return replace(self.base, num_envs=self.base.num_envs or NUM_ENVS).resolved("cpu").iterations

    @property
    def rungs(self) -> list[tuple[int, int]]:
        """The parts before the confirmation: the number of trials in each, and the iteration after which it ends.

        A training with few iterations has fewer parts, since each part has at least one.
        """
        parts: dict[int, int] = {}
        for k in range(self.halvings + 1):
            trials = max(min(self.num_confirmed, self.num_trials), self.num_trials // self.reduction**k)
            parts.setdefault(math.ceil(self._iterations / self.reduction ** (self.halvings - k)), trials)
        return [(trials, end) for end, trials in parts.items()]
