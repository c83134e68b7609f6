"""Copies of the policies of a running training, as the content of policy files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gpuvec.learners.algorithms import args_to_dict
from gpuvec.learners.checkpoint_fit import learning_policies
from gpuvec.learners.cuda_graphs.readout import Readout
from gpuvec.learners.environments import AgentSpaces
from gpuvec.learners.learner import Learner
from gpuvec.learners.policy_files.policy_file import to_bytes
from gpuvec.learners.policy_files.policy_schema import describe_policies


class PolicyReadout:
    """Reads the policies that learn, asynchronously: on a GPU the training continues while the copies are made.

    Args:
        learner: the learner of the training.
    """

    def __init__(self, learner: Learner) -> None:
        policies = learning_policies(learner.policies)
        settings = {role: args_to_dict(policy.args) for role, policy in policies.items()}
        self._description = describe_policies(settings, {role: AgentSpaces.of_env(learner.env, role) for role in policies})
        states: dict[str, dict[str, Tensor]] = {
            role: policy.network.state_dict() for role, policy in policies.items() if policy.network is not None
        }
        self._readouts = {
            role: {name: Readout(tensor, depth=1) for name, tensor in state.items()} for role, state in states.items()
        }
        self._learner = learner
        self.iteration = 0
        """The number of iterations after which the policies were read last."""

    def start(self) -> None:
        """Starts to read the policies after the iteration that was launched last.

        Raises:
            RuntimeError: a read was started and not taken.
        """
        for readouts in self._readouts.values():
            for readout in readouts.values():
                readout.start()
        self.iteration = self._learner.iteration

    def take(self) -> bytes:
        """Waits for the copies, and returns the content of a policy file. Any thread may call it."""
        return self.to_bytes(
            {role: {name: readout.take() for name, readout in part.items()} for role, part in self._readouts.items()}
        )

    def to_bytes(self, networks: Mapping[str, Mapping[str, Any]]) -> bytes:
        """Returns the content of a policy file with other weights.

        Args:
            networks: {role: {name: tensor}} of the same networks, such as those of a checkpoint.
        """
        return to_bytes(self._description, networks)
