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
from gpuvec.learners.args.training import TrainingArgs
from gpuvec.learners.captured.graph import capture
from gpuvec.learners.captured.guard import Guard
from gpuvec.learners.captured.state import copies, restore

FORMAT = 1  # of checkpoints; another number for each change that leaves older ones unreadable


class Learner:
    """A learner on `env` with the settings `args`."""

    names: tuple[str, ...] = ()  # of the metrics
    network: Any  # a module, and `players.Acting`
    parts: tuple[Callable[[], None], ...]
    guard: Guard

    def __init__(self, args: TrainingArgs, env: Any) -> None:
        self.args, self.env, self.iteration = args, env, 0
        self.seconds = 0.0  # of training
        self.confirm = 0  # the iteration from which on an evaluation may confirm the target
        self.generator = torch.Generator(args.device).manual_seed(args.seed)
        self.metrics = torch.zeros(len(self.names), dtype=torch.float64, device=args.device)

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
        """The metrics of the last iteration; the one place that waits for the device.

        Raises:
            NonFiniteError: the iteration met a number that is not finite.
        """
        numbers = torch.cat([self.metrics, self.guard.found.double()]).tolist()
        metrics, found = numbers[: len(self.names)], numbers[len(self.names) :]
        self.guard.check(found, self.iteration, self.args.env, self.env.num_envs // self.env.unwrapped.num_envs)
        return dict(zip(self.names, metrics, strict=True))

    def tensors(self) -> dict[str, Any]:
        """All tensors that the next iteration depends on, as nested dicts."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """A checkpoint: copies of tensors, numbers and strings, from which training goes on as if it had not stopped."""
        return {
            **copies(self.tensors()), "generator": self.generator.get_state(), "env": self.env.state_dict(),
            "iteration": self.iteration, "seconds": self.seconds, "confirm": self.confirm,
            "format": FORMAT, "algorithm": name_of(self.args), "args": asdict(self.args),
        }  # fmt: skip

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was called.

        Raises:
            StateError: a checkpoint of other settings.
        """
        if saved["algorithm"] != name_of(self.args):
            raise StateError(f"this checkpoint is of {saved['algorithm']}; it cannot go on with {name_of(self.args)}.")
        if saved["args"]["env"] != self.args.env:
            raise StateError(f"this checkpoint is of {saved['args']['env']}; it cannot go on in {self.args.env}.")
        if saved["generator"].shape != self.generator.get_state().shape:
            raise StateError(
                f"this checkpoint was written on {saved['args']['device']}; it cannot go on on {self.args.device}."
            )
        own = self.tensors()
        restore(own, {name: saved.get(name, {}) for name in own})
        self.generator.set_state(saved["generator"].cpu())
        self.env.load_state_dict(saved["env"])
        self.iteration, self.seconds, self.confirm = saved["iteration"], saved["seconds"], saved["confirm"]


def states_of(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
    """{parameter: what the optimiser remembers of it}."""
    return {name: dict(optimizer.state[p]) for name, p in parameters.items()}
