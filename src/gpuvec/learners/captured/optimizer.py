"""Adam (Kingma and Ba, 2015) that a CUDA graph can replay."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def adam(parameters: Iterable[Tensor], learning_rate: Tensor, eps: float) -> torch.optim.Adam:
    """Adam as one fused kernel.

    Its state is there from the start, and not from the first step on as usual: a graph must find all that it writes. The
    learning rate is a scalar tensor beside the parameters, which may be filled anew between steps. `eps` is above 0.
    """
    parameters = list(parameters)
    optimizer = torch.optim.Adam(parameters, learning_rate, eps=eps, fused=True, capturable=learning_rate.is_cuda)
    for p in parameters:
        p.grad = torch.zeros_like(p)
    optimizer.step()  # by gradients of zero: the parameters stay as they are
    for state in optimizer.state.values():
        state["step"].zero_()
    return optimizer
