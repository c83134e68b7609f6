"""The loop of the training of a population: what trains it, launches of iterations, and reads of their numbers.

Letters: P agents.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gpuvec.engine.backends.device import parse_device
from gpuvec.learners.cuda_graphs.readout import Readout
from gpuvec.learners.cuda_graphs.settings import torch_settings
from gpuvec.learners.environments import evaluation_params
from gpuvec.learners.iterations import reads_late
from gpuvec.learners.metric_names import EVAL_RETURN
from gpuvec.learners.population.batched.batched_population import GROUP_SIZES, BatchedPopulation
from gpuvec.learners.population.cpu_population import CPUPopulation
from gpuvec.learners.population.population_args import METRICS, PopulationArgs
from gpuvec.learners.population.results.population_history import PopulationHistory
from gpuvec.learners.population.results.population_result import PopulationResult
from gpuvec.learners.wait_reports import OnPhase, phase

logger = logging.getLogger(__name__)
ITERATIONS_PER_LAUNCH = {"cpu": 1, "cuda": 8}
"""The number of iterations between two reads of the numbers, by the kind of the device."""

SECONDS_BETWEEN_CHECKPOINTS, MAX_SHARE_OF_TIME = 60.0, 0.05


class PopulationPath(Protocol):
    """A population that learns."""

    name: str
    """What trains it, for messages."""
    args: PopulationArgs
    """The settings, resolved."""
    iteration: int
    """The number of finished iterations."""

    @property
    def stopped_at(self) -> Tensor:
        """(P,) int64: the iteration in which an agent was stopped, because a number was not finite; -1 for one that runs."""

    def capture(self) -> None:
        """Prepares launches on a GPU; the state is the same afterwards."""

    def advance(self, iterations: int) -> Tensor:
        """Runs iterations, on a GPU asynchronously, and returns their `METRICS`, (iterations, metrics, P) float32.

        Args:
            iterations: the number of iterations.
        """

    def evaluate(self) -> Tensor:
        """Returns the mean return of each agent in an evaluation, (P,) float32 on the CPU, nan for agents that were stopped.

        See `PopulationEvaluator`. Nothing of the training changes.
        """

    def state_dict(self) -> dict[str, Any]:
        """Returns copies of all that the next iteration depends on; see `BatchedPopulation.tensors`."""

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continues from the moment at which `state_dict` was called.

        Args:
            saved: its result, of a population with the same seeds, networks and environment.
        """

    def set_settings(self, name: str, values: ArrayLike) -> None:
        """Changes a setting of all agents for the iterations that follow.

        Args:
            name: one of `AGENT_SETTINGS`.
            values: P values.
        """

    def copy_learned(self, source: ArrayLike) -> None:
        """Gives each agent the parameters and the moments of another one; settings and environments do not change.

        An agent that was stopped continues if it takes those of one that runs.

        Args:
            source: P numbers of agents; the own number for an agent that keeps what it has, as each agent that is copied does.
        """

    def close(self) -> None:
        """Frees the environments."""


def make_population(args: PopulationArgs) -> PopulationPath:
    """Returns a population that is ready to learn, and logs what trains it.

    On a GPU it is one kernel, unless fused=False. With fused="auto" it is batched operations where the kernel does not support
    the GPU or the training, and the reason is logged.

    Args:
        args: the settings, resolved.

    Raises:
        ValueError: an environment that a population does not support, or fused=True and a training that the kernel does not.
        DeviceError: fused=True and a GPU that the kernel does not support.
        OutOfMemoryError: the agents do not fit into the memory that is free.
        RuntimeError: processes of a CPU cannot train, for example because the environment is registered in this process alone.
    """
    population: PopulationPath | str = ""
    if args.base.fused is True or (args.base.fused == "auto" and args.base.device != "cpu"):
        # Imported here because it imports the CUDA compiler, which a CPU does not need.
        from gpuvec.learners.population.kernel.kernel_population import make_kernel_population

        population = make_kernel_population(args)
        if isinstance(population, str) and args.base.fused is True:
            raise ValueError(f'fused=True, but the kernel cannot be used: {population}. Use fused="auto", or change that.')
    if isinstance(population, str):
        if population:
            logger.info("The kernel for populations is not used: %s.", population)
        is_divided = args.base.device == "cpu" and args.base.threads > 1 and args.num_agents > GROUP_SIZES["cpu"]
        population = CPUPopulation(args) if is_divided else BatchedPopulation(args)
    logger.info("%d agents are trained by %s.", args.num_agents, population.name)
    return population


OnResults = Callable[[PopulationArgs, int, NDArray[np.float32]], None]
"""Called with the resolved settings, the number of finished iterations, and a launch's numbers, (iterations, metrics, P)."""
OnLaunch = Callable[[PopulationPath, NDArray[np.float32]], None]
"""Called with the population and the numbers of the last launch, (iterations, metrics, P)."""


class HistoryRecorder:
    """Collects the numbers of a population over its launches.

    Args:
        args: the settings, resolved.
        on_results: called with the numbers of each launch, in their order; None for nothing.
        first_iteration: the iteration after which the training continues; 0 for a new one.
        begun: the history until then; None for none.
    """

    def __init__(
        self,
        args: PopulationArgs,
        on_results: OnResults | None,
        first_iteration: int = 0,
        begun: PopulationHistory | None = None,
    ) -> None:
        self._args, self._on_results, self._begun = args, on_results, begun
        self._first_iteration = self._iteration = first_iteration
        self.results: list[NDArray[np.float32]] = []
        """The numbers of each launch that was read, (iterations, metrics, P)."""
        self._seconds: list[float] = []
        self._evaluations: dict[int, NDArray[np.float32]] = {}  # {iteration: returns (P,)}
        self._reads = deque[Readout]()
        self._begin = self._last = time.perf_counter()

    def start_read(self, metrics: Tensor) -> None:
        """Starts to read the numbers of a launch that was enqueued on the current stream.

        Args:
            metrics: (I, M, P): the M metrics in the I iterations of the launch.
        """
        self._reads.append(Readout(metrics, depth=1))
        self._reads[-1].start()

    def finish_reads(self, keep: int = 0) -> None:
        """Waits for reads in their order, and reports the numbers.

        Args:
            keep: the number of reads that may remain pending.
        """
        while len(self._reads) > keep:
            results = self._reads.popleft().take().clone().numpy()  # a copy, because a readout has pinned memory
            # The time of a launch is divided equally among its iterations.
            now = time.perf_counter()
            self._seconds += (np.linspace(self._last, now, len(results) + 1)[1:] - self._begin).tolist()
            self.results.append(results)
            self._iteration += len(results)
            self._last = now
            if self._on_results is not None:
                self._on_results(self._args, self._iteration, results)

    def evaluate_if_due(self, population: PopulationPath, end: int) -> None:
        """Evaluates all agents after each `evaluate_every` iterations and the last one, outside of the time of the training.

        Args:
            population: the population.
            end: the number of the last iteration.
        """
        every = self._args.base.evaluate_every or end
        if population.iteration != end and population.iteration % every:
            return
        if population.args.base.device != "cpu":
            torch.cuda.synchronize(population.args.base.device)
        begin = time.perf_counter()
        self._evaluations[population.iteration] = population.evaluate().numpy()
        seconds = time.perf_counter() - begin
        self._begin += seconds
        self._last += seconds

    def result(self, population: PopulationPath) -> PopulationResult:
        """Waits for all reads, and returns the result of the training so far, with its history from the beginning.

        Args:
            population: the population.
        """
        self.finish_reads()
        args, state = self._args, population.state_dict()
        tensors = state["tensors"]
        results = np.concatenate(self.results) if self.results else np.zeros((0, len(METRICS), args.num_agents), np.float32)
        iterations = self._first_iteration + 1 + np.arange(len(results))
        eval_return = np.full((len(results), args.num_agents), np.nan, np.float32)
        for iteration, returns in self._evaluations.items():
            eval_return[iteration - self._first_iteration - 1] = returns
        history = PopulationHistory(
            steps=iterations * args.base.steps_per_iteration,
            seconds=np.array(self._seconds),
            metrics={
                **{name: np.ascontiguousarray(results[:, m]) for m, name in enumerate(METRICS)},
                EVAL_RETURN: eval_return,
            },
            seeds=np.array(args.seeds, np.int64),
            settings={name: tensors["settings"][name].cpu().numpy() for name in args.settings},
            params={name: np.array(column, np.float64) for name, column in args.params.items()},
            stopped_at=tensors["stopped_at"].cpu().numpy(),
            fault=tensors["fault"].cpu().numpy(),
        )
        if self._begun is not None:
            history = self._begun.continued_by(history)
        return PopulationResult(args, history, state, population.name)


class Checkpoints:
    """Writes checkpoints between launches.

    Args:
        write: called with the result so far; None for no checkpoints.
        every: the number of iterations between two checkpoints; None for one after the first launch, and then one each minute,
            or less often if writing takes longer than `MAX_SHARE_OF_TIME`.
        iteration: that after which the training continues; 0 for a new one.
    """

    def __init__(self, write: Callable[[PopulationResult], object] | None, every: int | None, iteration: int) -> None:
        if every is not None and every < 1:
            raise ValueError(f"checkpoint_every must be at least 1, got {every}.")
        self._write, self._every, self._last_iteration, self._next_time = write, every, iteration, -math.inf

    def is_due(self, iteration: int) -> bool:
        """Returns whether a checkpoint is due after `iteration`, the last one of a launch."""
        if self._write is None or self._every is None:
            return self._write is not None and time.perf_counter() >= self._next_time
        return iteration // self._every > self._last_iteration // self._every

    def write(self, result: PopulationResult) -> None:
        """Writes the checkpoint of the `result` so far."""
        assert self._write is not None, "it is due"
        begin = time.perf_counter()
        self._write(result)
        end, self._last_iteration = time.perf_counter(), result.state["iteration"]
        self._next_time = end + max(SECONDS_BETWEEN_CHECKPOINTS, (end - begin) / MAX_SHARE_OF_TIME)


def iterations_of_launch(args: PopulationArgs, iteration: int, end: int, iterations_per_launch: int | None) -> int:
    """Returns the number of iterations of the next launch, which ends before the next evaluation.

    Args:
        args: the settings, resolved.
        iteration: the number of finished iterations.
        end: the number of the last iteration.
        iterations_per_launch: as in `train_population`.

    Raises:
        ValueError: an evaluation would be within a launch of `iterations_per_launch`.
    """
    every = args.base.evaluate_every or end
    if iterations_per_launch and args.base.evaluate_every and every % iterations_per_launch:
        raise ValueError(
            f"evaluate_every must be a multiple of the {iterations_per_launch} iterations between two changes, got {every}."
        )
    launch = iterations_per_launch or ITERATIONS_PER_LAUNCH[args.base.device.partition(":")[0]]
    return min(launch, end - iteration, every - iteration % every)


def train_population(
    args: PopulationArgs,
    on_launch: OnLaunch | None = None,
    state: Mapping[str, Any] | None = None,
    on_phase: OnPhase | None = None,
    iterations_per_launch: int | None = None,
    should_stop: Callable[[], bool] | None = None,
    last_iteration: int | None = None,
    on_results: OnResults | None = None,
    while_training: Callable[[PopulationPath], None] = lambda population: None,
    history: PopulationHistory | None = None,
    on_checkpoint: Callable[[PopulationResult], object] | None = None,
    checkpoint_every: int | None = None,
) -> PopulationResult:
    """Trains all agents for `args.base.total_steps` steps each.

    All agents are evaluated after every `args.base.evaluate_every` iterations if it is given, and at the end of the training.

    An agent has the same numbers for any number of other agents and any number of iterations in a launch. On a GPU the numbers
    of a launch are read while the next one runs, unless there is an `on_launch`, which may change the population before that.

    Args:
        args: the settings.
        on_launch: called with the population and the numbers of each launch, (iterations, metrics, P), in their order. It may
            change settings, and copy what agents learned, before the next launch.
        state: `PopulationResult.state` or `PopulationPath.state_dict()`, from which the training continues bit for bit.
        on_phase: called with a text, such as "compiling gpuvec/CartPole-v1", when a wait begins, and with "" when it ends.
        iterations_per_launch: the number of iterations between two calls of `on_launch`, of which `evaluate_every` must be a
            multiple; None for that of the device, or fewer before an evaluation.
        should_stop: called before each launch; returns whether the training ends, to continue later from its state.
        last_iteration: the iteration after which the training ends, to continue later; None for the last one of the settings.
        on_results: called with the numbers of each launch, in their order.
        while_training: called with the population after each launch was enqueued, on a GPU while it runs.
        history: the numbers until `state`, with which those of the result begin; None for none.
        on_checkpoint: called between launches with the result so far, from which the training can continue bit for bit.
        checkpoint_every: iterations between two calls of `on_checkpoint`; None for one after the first launch, and then one
            each minute, or less often if they take more than a twentieth of the time.

    Raises:
        ValueError, TypeError, DeviceError, StateError: settings, a device or a state that do not fit.
        OutOfMemoryError: the agents do not fit into the memory that is free.
    """
    device, eval_params = args.base.device, evaluation_params(args.base.env, args.base.params, args.base.evaluate_params)
    args = replace(args, base=replace(args.base, evaluate_params=eval_params)).resolved(str(parse_device(device)))
    device = args.base.device
    with ExitStack() as stack:
        # On a CPU each operation is short, and threads would slow it down; processes use several cores.
        stack.enter_context(torch_settings(device, 1))
        with phase(on_phase, f"compiling {args.base.env}"):
            population = stack.enter_context(closing(make_population(args)))
            if state is not None:
                population.load_state_dict(state)
        if device != "cpu":
            with phase(on_phase, "capturing CUDA graphs"):
                population.capture()
        recorder = HistoryRecorder(args, on_results, population.iteration, history)
        checkpoints = Checkpoints(on_checkpoint, checkpoint_every, population.iteration)
        end = min(args.base.iterations, last_iteration or args.base.iterations)
        while population.iteration < end and not (should_stop is not None and should_stop()):
            iterations = iterations_of_launch(args, population.iteration, end, iterations_per_launch)
            recorder.start_read(population.advance(iterations))
            while_training(population)
            recorder.evaluate_if_due(population, end)
            recorder.finish_reads(keep=1 if on_launch is None and reads_late(device) else 0)
            if on_launch is not None:
                on_launch(population, recorder.results[-1])
            if population.iteration < end and checkpoints.is_due(population.iteration):
                checkpoints.write(recorder.result(population))
        return recorder.result(population)
