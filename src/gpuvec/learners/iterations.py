"""The iterations of a training: until there were enough steps, the target is reached and confirmed, or the caller stops it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Literal

import torch

from gpuvec.engine.backends.device import parse_device
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.evaluation.evaluate import Evaluator, evaluation_metric_names
from gpuvec.learners.learner import Learner
from gpuvec.learners.metric_names import EVAL_RETURN
from gpuvec.learners.shards.process_group import Processes

OnIteration = Callable[[Learner, dict[str, float]], bool | None]
"""Called with the learner and the metrics of an iteration; returns whether the training ends before its time."""
Ending = Literal["total_steps", "target_return", "on_iteration"]
"""What ended a training: there were enough steps, the target was reached, or `on_iteration` returned True."""


class Iterations:
    """The iterations of a training, their evaluations and their reports. `close` frees the environments of evaluations.

    Args:
        args: the settings, resolved.
        learner: the learner.
        on_iteration, exact_at: as in `train`.
        processes: the processes of the training; None for this one alone.
    """

    def __init__(
        self,
        args: TrainingArgs,
        learner: Learner,
        on_iteration: OnIteration | None,
        exact_at: Callable[[int], bool] | None,
        processes: Processes | None = None,
    ) -> None:
        self._processes = processes or Processes()
        self.args, self.learner, self.on_iteration = args, learner, on_iteration
        self.exact_at = exact_at or (lambda iteration: on_iteration is not None)
        self.history: list[dict[str, float]] = []
        self.is_solved = False
        self._wants_stop = False  # of this process
        self._is_stopped = False  # of all processes
        self._device = parse_device(args.device)
        self._reads_late = reads_late(args.device)
        # One process evaluates, and all have its numbers, so that they agree on the end of the training.
        has_evaluator = args.evaluate_every is not None and self._processes.rank == 0
        self._evaluator = Evaluator(args, learner.policies, learner.opponent) if has_evaluator else None
        self._last_read_time = time.perf_counter()

    def run(self) -> list[dict[str, float]]:
        """Iterates until the end of the training, and returns the metrics of each iteration."""
        if not self.history:
            self._last_read_time = time.perf_counter()  # what was done before, such as capturing graphs, is no iteration
        while self.learner.iteration < self.args.iterations and not (self.is_solved or self._is_stopped):
            self.learner.iterate()
            self.read()
        return self.history

    @property
    def ended_by(self) -> Ending:
        """What ended the training."""
        if self.is_solved:
            return "target_return"
        return "total_steps" if self.learner.iteration >= self.args.iterations else "on_iteration"

    def read(self) -> None:
        """Starts to read the iteration that was launched last, and reports those whose reads are finished.

        These are the one before it, and the iteration itself if it is the last one or has to be exact. An evaluation is exact:
        it needs the parameters of its iteration, and its host waits for the device anyway.
        """
        self.learner.start_read()
        launched = self.learner.iteration
        is_last = launched >= self.args.iterations
        is_exact = not self._reads_late or is_last or self._is_evaluated(launched) or self.exact_at(launched)
        self.report_pending(0 if is_exact else 1)
        if self._wants_stop and self._processes.size == 1:
            self.report_pending()
        # Several processes agree in exact iterations alone, because each exchange between their hosts takes time.
        if self.on_iteration is not None and not self.learner.pending_reads:
            (self._is_stopped,) = map(bool, self._processes.numbers_of_first(lambda: [self._wants_stop], 1))

    def report_pending(self, keep: int = 0) -> None:
        """Waits for reads that were started, and reports their iterations in their order.

        Args:
            keep: the number of reads that may remain pending.
        """
        while self.learner.pending_reads > keep:
            self._report(self.learner.finish_read())

    def _report(self, metrics: dict[str, float]) -> None:
        learner, steps = self.learner, self.args.steps_per_iteration
        now, iteration = time.perf_counter(), learner.iteration - learner.pending_reads
        seconds, self._last_read_time = now - self._last_read_time, now
        learner.seconds += seconds
        progress = {"iteration": iteration, "steps": iteration * steps, "seconds": learner.seconds}
        device = self._device
        reserved = 0 if device.kind == "cpu" else torch.cuda.memory_reserved(device.ordinal) + device.pooled_bytes()
        progress |= {"steps_per_second": steps / seconds, "gpu_memory": float(reserved)}
        evaluation = self._evaluate(iteration)
        self.history.append({**progress, **metrics, **evaluation})
        target = self.args.target_return
        self.is_solved = target is not None and evaluation[EVAL_RETURN] >= target
        if self.on_iteration is not None and self.on_iteration(learner, self.history[-1]):
            self._wants_stop = True

    def _is_evaluated(self, iteration: int) -> bool:
        return self.args.evaluate_every is not None and iteration % self.args.evaluate_every == 0

    def _evaluate(self, iteration: int) -> dict[str, float]:
        """Returns the metrics of an evaluation, nan in iterations without one, and none in a training without any.

        The seconds of the training do not contain it.
        """
        if self.args.evaluate_every is None:
            return {}
        names = evaluation_metric_names(self.learner.policies)
        if not self._is_evaluated(iteration):
            return dict.fromkeys(names, math.nan)

        def evaluate() -> list[float]:
            assert self._evaluator is not None, "the first process has one until `close`"
            return list(self._evaluator.evaluate(iteration).values())

        values = self._processes.numbers_of_first(evaluate, len(names))
        self._last_read_time = time.perf_counter()
        return dict(zip(names, values, strict=True))

    def close(self) -> None:
        """Closes the environments of evaluations."""
        if self._evaluator is not None:
            self._evaluator.close()
            self._evaluator = None


def reads_late(device: str) -> bool:
    """Returns whether metrics are read while the next iteration runs; on a CPU iterations are synchronous.

    Args:
        device: "cpu" or "cuda:<index>".
    """
    return device != "cpu"
