"""What all learners share: parts that a GPU replays as graphs, metrics, and checkpoints from which training goes on.

A learner's parts read and write only tensors that were there before. On a CPU they run as they stand; on a GPU each is one CUDA
graph, so an iteration is a few launches and the host waits for the device once, to read the metrics.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from gpuvec.errors import StateError
from gpuvec.learners.algorithms import name_of
from gpuvec.learners.args import TrainingArgs
from gpuvec.learners.graph import capture
from gpuvec.learners.state import copies, restore


class Learner:
    """A learner on `env` with the settings `args`."""

    names: tuple[str, ...] = ()  # of the metrics
    network: Any  # a module, and `players.Acting`
    parts: tuple[Callable[[], None], ...]

    def __init__(self, args: TrainingArgs, env: Any) -> None:
        self.args, self.env, self.iteration = args, env, 0
        self.generator = torch.Generator(args.device).manual_seed(args.seed)
        self.first_weights = torch.Generator().manual_seed(args.seed)  # the same on every device
        self.metrics = torch.zeros(len(self.names), device=args.device)

    def capture(self) -> None:
        """Records each part as a CUDA graph; what this runs leaves no trace in the learner or its environments."""
        saved = self.state_dict()

        def version() -> int:
            return int(self.env.unwrapped.kernel_version)

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"\s*Online softmax is disabled")  # how Inductor tells of a choice it made
            self.parts = tuple(capture(part, self.args.device, self.generator, version) for part in self.parts)
        self.load_state_dict(saved)

    def iterate(self) -> None:
        """One iteration; waits for nothing."""
        for part in self.parts:
            part()
        self.iteration += 1

    def read(self) -> dict[str, float]:
        """The metrics of the last iteration; the one place that waits for the device."""
        return dict(zip(self.names, self.metrics.tolist(), strict=True))

    def tensors(self) -> dict[str, Any]:
        """All tensors that the next iteration depends on, as nested dicts."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """A checkpoint: copies of tensors, numbers and strings, from which training goes on as if it had not stopped."""
        return {
            **copies(self.tensors()), "generator": self.generator.get_state(), "env": self.env.state_dict(),
            "iteration": self.iteration, "algorithm": name_of(self.args), "args": asdict(self.args),
        }  # fmt: skip

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was called.

        Raises:
            StateError: a checkpoint of other settings.
        """
        if saved["algorithm"] != name_of(self.args):
            raise StateError(f"this checkpoint is of {saved['algorithm']}; it cannot go on with {name_of(self.args)}.")
        if saved["generator"].shape != self.generator.get_state().shape:
            raise StateError(
                f"this checkpoint was written on {saved['args']['device']}; it cannot go on on {self.args.device}."
            )
        own = self.tensors()
        restore(own, {name: saved.get(name, {}) for name in own})
        self.generator.set_state(saved["generator"].cpu())
        self.env.load_state_dict(saved["env"])
        self.iteration = saved["iteration"]


def states_of(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
    """{parameter: what the optimiser remembers of it}."""
    return {name: dict(optimizer.state[p]) for name, p in parameters.items()}
