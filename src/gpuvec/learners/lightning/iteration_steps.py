"""What Lightning takes for data and for an optimiser, so that it counts the iterations of a learner as steps.

This module does not import Lightning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import optim

from gpuvec.learners.checkpoint_fit import learning_policies
from gpuvec.learners.learner import Learner


class EpochIterations:
    """The data of an epoch: the number of each iteration in it. The samples themselves come from the environments.

    Its state is empty, because Lightning counts how much of an epoch is done when it resumes one.

    Args:
        length: the number of iterations of an epoch.
    """

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))

    def state_dict(self) -> dict[str, Any]:
        """Returns an empty dict."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Does nothing with the `state` of an epoch, which is empty."""


class IterationOptimizer(optim.Optimizer):
    """An optimiser whose step is an iteration of a learner: rollout, estimate and improvement.

    The optimisers of the policies are in the learner, and so is their state.

    Args:
        learner: the learner.
    """

    def __init__(self, learner: Learner) -> None:
        policies = learning_policies(learner.policies).values()
        groups = [{"params": list(policy.network.parameters())} for policy in policies if policy.network is not None]
        super().__init__(groups, {})
        self._learner = learner

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Calls the function `closure`, in which Lightning calls its hooks, and runs an iteration; returns its result."""
        result = None if closure is None else closure()
        self._learner.iterate()
        return result

    def state_dict(self) -> dict[str, Any]:
        """Returns an empty dict."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Does nothing with `state_dict`, which is empty."""
