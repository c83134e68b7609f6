"""Adam of all parameters of a network in two kernels on a GPU, clipping included.

torch needs about ten launches for the norm of the gradient, the clipping and the step, each of which takes longer than the
numbers of a small network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from gpuvec.engine.backends.cuda.nvrtc import CudaSource
from gpuvec.engine.backends.device import parse_device
from gpuvec.learners.cuda_graphs.tensor_launches import make_tensor_launcher

THREADS, ELEMENTS = 256, 1024  # of a block
TENSOR_MEMBERS = {
    "parameter": "float*", "gradient": "const float*", "exp_avg": "float*", "exp_avg_sq": "float*", "step": "float*",
}  # fmt: skip
MEMBERS = {
    "squared_norms": "float*", "norm": "float*", "learning_rate": "const float*", "found_inf": "const float*",
    "max_norm": "double", "eps": "double",
}  # fmt: skip
ADDRESSES = {
    "parameter": "PARAMETERS", "gradient": "GRADIENTS", "exp_avg": "EXP_AVG", "exp_avg_sq": "EXP_AVG_SQ", "step": "STEPS",
}  # fmt: skip


def num_blocks(sizes: Sequence[int]) -> int:
    """Returns the number of blocks for tensors of `sizes` elements."""
    return sum(-(-size // ELEMENTS) for size in sizes)


def adam_kernels(sizes: Sequence[int], betas: tuple[float, float]) -> dict[str, CudaSource]:
    """Returns {name: kernel} of the norm and of the step.

    Args:
        sizes: the number of elements of each tensor.
        betas: the decay rates of the moments.
    """
    count = range(len(sizes))
    members = {f"{name}{k}": kind for k in count for name, kind in TENSOR_MEMBERS.items()}
    constants: dict[str, int | str] = {
        "NUM_TENSORS": len(sizes), "SIZES": "{" + ", ".join(map(str, sizes)) + "}", "NUM_BLOCKS": num_blocks(sizes),
        "ELEMENTS": ELEMENTS, "THREADS": THREADS,
    }  # fmt: skip
    constants |= {macro: "{" + ", ".join(f"b.{name}{k}" for k in count) + "}" for name, macro in ADDRESSES.items()}
    for k, beta in enumerate(betas, 1):
        constants |= {f"BETA{k}": f"{beta!r}f", f"LOG_BETA{k}": f"{math.log(beta)!r}f"}
    names = tuple((members | MEMBERS).items()), tuple(constants.items())
    file = Path(__file__).with_name("adam.cu")
    return {name: CudaSource(file, name, *names, THREADS) for name in ("gradient_norm", "adam")}


class AdamKernels:
    """Launches the kernels.

    Args:
        parameters: float32 tensors of one GPU, contiguous.
        betas: the decay rates of the moments.
    """

    def __init__(self, parameters: Sequence[Tensor], betas: tuple[float, float]) -> None:
        self._parameters, sizes = list(parameters), [p.numel() for p in parameters]
        device = self._parameters[0].device
        gpu = parse_device(str(device))
        self._launches = [make_tensor_launcher(kernel, gpu) for kernel in adam_kernels(sizes, betas).values()]
        self._squared_norms = torch.zeros(num_blocks(sizes), device=device)

    def step(
        self,
        state: Mapping[Tensor, Mapping[str, Tensor]],
        learning_rate: Tensor,
        eps: float,
        max_norm: float | None,
        found_inf: Tensor | None,
    ) -> Tensor:
        """Updates all parameters from their `grad`, and returns the norm of all gradients together, ().

        Args:
            state: {parameter: its state}, as `Adam` has it.
            learning_rate: scalar float32.
            eps: added to the denominator.
            max_norm: a larger norm is clipped to it; None for no clipping.
            found_inf: scalar float32: nothing is updated where it is 1; None for no such flag.
        """
        norm = torch.empty((), device=learning_rate.device)
        members: dict[str, Tensor | float] = {
            "squared_norms": self._squared_norms, "norm": norm, "learning_rate": learning_rate, "eps": eps,
            "found_inf": 0 if found_inf is None else found_inf, "max_norm": -1.0 if max_norm is None else max_norm,
        }  # fmt: skip
        # Copies of gradients that are not contiguous must exist until the launches.
        gradients = [cast(Tensor, p.grad).contiguous() for p in self._parameters]
        for k, (parameter, gradient) in enumerate(zip(self._parameters, gradients, strict=True)):
            members |= {f"parameter{k}": parameter, f"gradient{k}": gradient}
            members |= {f"{name}{k}": x for name, x in state[parameter].items()}
        for launch in self._launches:
            launch(len(self._squared_norms), **members)
        return norm
