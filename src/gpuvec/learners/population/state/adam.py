"""A step of Adam (Kingma and Ba, 2015, arXiv:1412.6980) for several agents, each with its own step size and number of steps.

Letters: P agents, N parameters of an agent.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpuvec.learners.cuda_graphs.optimizer import BETAS
from gpuvec.learners.on_policy import ADAM_EPS


class AdamState(NamedTuple):
    """The moments and the number of steps of each agent."""

    exp_avg: Tensor  # (P, N)
    exp_avg_sq: Tensor  # (P, N)
    step: Tensor  # (P,) float32

    def agents(self, part: slice) -> AdamState:
        """Returns views of the state of the agents in `part`."""
        return AdamState(*(x[part] for x in self))


@torch.no_grad()
def adam_step(
    parameters: Tensor, gradient: Tensor, state: AdamState, learning_rate: Tensor, is_stepped: Tensor, divisor: Tensor
) -> None:
    """Updates `parameters` and `state` in place.

    Args:
        parameters: (P, N).
        gradient: (P, N); those of agents that are not stepped may be any numbers.
        state: that of the agents.
        learning_rate: (P,) float32.
        is_stepped: (P,) bool: the agents that are updated.
        divisor: (P,): by which the gradient is divided.
    """
    first, second = BETAS
    stepped = is_stepped.unsqueeze(1)
    gradient = torch.where(stepped, gradient / divisor.unsqueeze(1), 0.0)
    state.step.add_(is_stepped)
    steps = state.step.double()
    state.exp_avg.lerp_(gradient, torch.where(stepped, 1.0 - first, 0.0).expand_as(gradient))
    state.exp_avg_sq.mul_(torch.where(stepped, second, 1.0)).addcmul_(gradient, gradient, value=1.0 - second)
    # Before the first step of an agent both corrections are 0; its step size is 0 then.
    first_correction = torch.where(is_stepped, 1.0 - first**steps, 1.0)
    second_correction = torch.where(is_stepped, 1.0 - second**steps, 1.0).sqrt().float()
    step_size = torch.where(is_stepped, learning_rate / first_correction, 0.0).float()
    denominator = (state.exp_avg_sq.sqrt() / second_correction.unsqueeze(1)).add_(ADAM_EPS)
    parameters.sub_(step_size.unsqueeze(1) * state.exp_avg / denominator)
