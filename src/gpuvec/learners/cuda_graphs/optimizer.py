"""Adam (Kingma and Ba, 2015, arXiv:1412.6980) that a CUDA graph can replay.

`torch.optim.Adam` imports torch's compiler, which takes two seconds at its first use, and allocates its state in its first
step. This class calls the same fused operation on a state that is allocated in advance, or on a GPU kernels for all parameters
together, if there are not too many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from gpuvec.engine.backends.device import parse_device
from gpuvec.learners.cuda_graphs.launches import make_tensor_launcher

if TYPE_CHECKING:
    from gpuvec.engine.backends.cuda.nvrtc import CudaSource

BETAS = (0.9, 0.999)
# Elements. The fused operation gives a block of threads to 65,536 elements of a tensor, so it would leave most of a GPU idle.
PIECE_SIZE = 4096
# With more tensors or elements, each block of the kernels would read too many addresses, or norms of other blocks.
MAX_KERNEL_TENSORS, MAX_KERNEL_ELEMENTS = 24, 2**20
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


class Adam:
    """Adam as one fused kernel for all parameters.

    Args:
        parameters: the tensors to optimise; a step reads their `grad`.
        learning_rate: scalar float32 tensor on the device of the parameters; it may be filled between steps.
        eps: added to the denominator, above 0.
    """

    state: dict[Tensor, dict[str, Tensor]]
    """{parameter: its "step", a scalar, and its moments "exp_avg" and "exp_avg_sq"}, named as in `torch.optim.Adam`."""
    found_inf: Tensor | None = None
    """Scalar float32 on the device: a step is skipped where this is 1. None for no such flag."""

    def __init__(self, parameters: Iterable[Tensor], learning_rate: Tensor, eps: float) -> None:
        self.learning_rate, self.eps = learning_rate, eps
        self.state = {
            p: {
                "step": torch.zeros((), dtype=torch.float32, device=p.device),
                "exp_avg": torch.zeros_like(p, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(p, requires_grad=False),
            }
            for p in parameters
        }
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for p in self.state:
            by_dtype.setdefault(p.dtype, []).append(p)
        self._groups = list(by_dtype.values())
        self._has_kernels = has_kernels(list(self.state))
        self._launches: list[Callable[..., None]] = []  # of the kernels, which the first step loads
        self._squared_norms = torch.empty(0)

    @torch.no_grad()
    def step(self, max_norm: float | None = None) -> Tensor:
        """Updates all parameters from their gradients, and returns the norm of all gradients together, ().

        Args:
            max_norm: a larger norm is clipped to it; the gradients may be scaled in place. None for no clipping.

        Raises:
            ValueError: a parameter has no gradient.
        """
        if any(p.grad is None for p in self.state):
            raise ValueError("a parameter has no gradient; Adam steps all of them together.")
        if self._has_kernels:
            return self._step_by_kernels(max_norm)
        groups = [
            [list(tensors) for tensors in zip(*chain.from_iterable(map(self._pieces, group)), strict=True)]
            for group in self._groups
        ]
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm([g for group in groups for g in group[1]])))
        scale = None if max_norm is None else (norm / max_norm).clamp(min=1.0)  # a divisor
        steps = [state["step"] for state in self.state.values()]
        torch._foreach_add_(steps, 1)
        for parameters, gradients, first, second, piece_steps in groups:
            torch._fused_adam_(
                parameters, gradients, first, second, [], piece_steps, lr=self.learning_rate, beta1=BETAS[0], beta2=BETAS[1],
                weight_decay=0.0, eps=self.eps, amsgrad=False, maximize=False, grad_scale=scale, found_inf=self.found_inf,
            )  # fmt: skip
        if self.found_inf is not None:
            torch._foreach_sub_(steps, [self.found_inf] * len(steps))
        return norm

    def _step_by_kernels(self, max_norm: float | None) -> Tensor:
        """Steps by two kernels, clipping included.

        torch needs about ten launches for the norm of the gradient, the clipping and the step, each of which takes longer than
        the numbers of a small network.
        """
        if not self._launches:
            sizes, device = [p.numel() for p in self.state], self.learning_rate.device
            gpu = parse_device(str(device))
            self._launches = [make_tensor_launcher(kernel, gpu) for kernel in adam_kernels(sizes, BETAS).values()]
            self._squared_norms = torch.zeros(num_blocks(sizes), device=device)
        norm = torch.empty((), device=self.learning_rate.device)
        members: dict[str, Tensor | float] = {
            "squared_norms": self._squared_norms, "norm": norm, "learning_rate": self.learning_rate, "eps": self.eps,
            "found_inf": 0 if self.found_inf is None else self.found_inf, "max_norm": -1.0 if max_norm is None else max_norm,
        }  # fmt: skip
        # Copies of gradients that are not contiguous must exist until the launches.
        gradients = [cast(Tensor, p.grad).contiguous() for p in self.state]
        for k, ((parameter, state), gradient) in enumerate(zip(self.state.items(), gradients, strict=True)):
            members |= {f"parameter{k}": parameter, f"gradient{k}": gradient, **{f"{name}{k}": x for name, x in state.items()}}
        for launch in self._launches:
            launch(len(self._squared_norms), **members)
        return norm

    def _pieces(self, parameter: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Yields views of a parameter, its gradient and its moments, each with the step."""
        state = self.state[parameter]
        tensors = parameter, cast(Tensor, parameter.grad), state["exp_avg"], state["exp_avg_sq"]
        if not all(x.is_contiguous() for x in tensors):
            yield *tensors, state["step"]
            return
        for views in zip(*(x.view(-1).split(PIECE_SIZE) for x in tensors), strict=True):
            yield *views, state["step"]


def has_kernels(parameters: Sequence[Tensor]) -> bool:
    """Returns whether the kernels step these `parameters`, tensors of any shapes."""
    return (
        0 < len(parameters) <= MAX_KERNEL_TENSORS
        and sum(p.numel() for p in parameters) <= MAX_KERNEL_ELEMENTS
        and all(p.is_cuda and p.dtype == torch.float32 and p.is_contiguous() and p.numel() for p in parameters)
    )


def num_blocks(sizes: Sequence[int]) -> int:
    """Returns the number of blocks for tensors of `sizes` elements."""
    return sum(-(-size // ELEMENTS) for size in sizes)


def adam_kernels(sizes: Sequence[int], betas: tuple[float, float]) -> dict[str, CudaSource]:
    """Returns {name: kernel} of the norm and of the step.

    Args:
        sizes: the number of elements of each tensor.
        betas: the decay rates of the moments.
    """
    # Imported here because it imports the CUDA compiler, which a CPU does not need.
    from gpuvec.engine.backends.cuda.nvrtc import CudaSource

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
