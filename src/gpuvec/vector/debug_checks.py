"""`debug=True`: the object that checks each step of a vector environment in plain Python."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol

from gpuvec.engine.simulation import Simulation
from gpuvec.spec import Environment

# By a string, as the entry points of `gpuvec.registration`, since checks are a layer above vector environments.
IMPLEMENTATION = "gpuvec.testing.step_checks:StepChecks"


class DebugChecks(Protocol):
    """What `VectorEnv` calls around each step and after each reset."""

    def before_step(self, actions: Any) -> Any:
        """Repeats the step that the device is about to make.

        Args:
            actions: the actions of all environments.
        """

    def after_step(self, results: tuple[Any, Any, Any, Any, Mapping[str, Any]]) -> None:
        """Checks the results of a step.

        Args:
            results: what `step` returns.
        """

    def after_reset(self, obs: Any, mask: Any, options: Mapping[str, float]) -> None:
        """Repeats a reset that the device has made, and checks its results.

        Args:
            obs: the observations.
            mask: (E,) bool, the environments that were reset; None for all.
            options: the parameters that the reset changed.
        """


def make_debug_checks(env: Environment, simulation: Simulation) -> DebugChecks:
    """Returns the checks of an environment.

    Args:
        env: the environment.
        simulation: its buffers.
    """
    module, _, name = IMPLEMENTATION.partition(":")
    checks: DebugChecks = getattr(importlib.import_module(module), name)(env, simulation)
    return checks
