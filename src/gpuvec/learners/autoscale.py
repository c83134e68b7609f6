"""Finds the number of environments and the length of rollouts with which a training makes most steps per second.

What a training adds to the memory of the process grows at most in proportion to its environments and to the steps of a rollout.
So a trial of twice as many adds at most twice what a trial has added, and is run only if that fits into the memory that was
free. What the process had before, such as PyTorch's libraries, does not grow. The first trial is small enough by the arithmetic
of its rollout.

Letters: E environments, T steps.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from gpuvec.engine.backends.device import parse_device
from gpuvec.engine.backends.host_memory import peak_resident_bytes, resident_bytes
from gpuvec.errors import OutOfMemoryError
from gpuvec.learners.algorithms import ALL
from gpuvec.learners.buffers.memory_check import free_bytes, rollout_bytes
from gpuvec.learners.config.training_config import DDPGArgs, TrainingArgs
from gpuvec.learners.cuda_graphs.settings import current_device, torch_settings
from gpuvec.learners.policy_configs import Bodies, PolicyConfig, PolicyConfigs, shared_settings
from gpuvec.learners.shards.join import join_processes
from gpuvec.learners.shards.process_group import Processes, comparable_settings, divide, require_divisible
from gpuvec.learners.shards.torchrun import Sharding, Sync, process_device
from gpuvec.learners.training import make_training_env, open_learner

FIRST_NUM_ENVS = {"cpu": 16, "cuda": 1024}
MAX_NUM_ENVS = 2**26
MIN_GAIN = 1.02  # a trial that is not faster by this factor counts as no gain
MAX_TRIALS_WITHOUT_GAIN = 2
ROLLOUTS_IN_MEMORY = 4  # the rollout of a first trial, and what a learner stores and computes beside it, at most
WARM_UP_ITERATIONS = 2
ENDLESS = 2**62  # steps, so that values that change over a training stay near their first


class Trial(NamedTuple):
    """A number of environments and of steps, and what was measured with them."""

    num_envs: int
    num_steps: int
    steps_per_second: float | None = None
    """Environment steps per second of whole iterations; None if the trial was not run."""
    num_bytes: int | None = None
    """The largest memory of the process; None if the trial was not run, or if the system does not report it."""
    reason: str = ""
    """Why the trial was not run."""
    is_too_large: bool = False
    """Whether it was not run because of the memory."""

    @property
    def speed(self) -> float:
        """The steps per second; 0 if the trial was not run."""
        return self.steps_per_second or 0.0


OnTrial = Callable[[Trial], None]


class Scale(NamedTuple):
    """The sizes that `autoscale` has chosen, and what it has chosen them from."""

    num_envs: int
    """E."""
    num_steps: int
    """T."""
    trials: tuple[Trial, ...]
    """In the order in which they were made."""

    @property
    def steps_per_second(self) -> float:
        """Environment steps per second in the trial with the chosen sizes."""
        return next(t.speed for t in self.trials if (t.num_envs, t.num_steps) == (self.num_envs, self.num_steps))


def autoscale(
    args: TrainingArgs | PolicyConfigs,
    *,
    memory_share: float = 0.8,
    seconds: float = 0.5,
    num_steps: int | None = None,
    body: Bodies = None,
    on_trial: OnTrial | None = None,
    shards: int | None = None,
    deterministic_shards: bool = True,
    sync: Sync = "gradient",
) -> Scale:
    """Finds the number of environments and the length of rollouts with the highest steps per second.

    It measures whole iterations of short trainings, with twice as many environments each time until that gains nothing, and
    then with other lengths of rollouts. The fastest sizes are not always those that learn with the fewest steps: the settings
    that are tuned for other sizes, such as the learning rate, may have to change.

    Each of several processes that torchrun started measures trials with its part of the shards, by itself. All of them choose
    the sizes that are fastest in sum, of those that every process has measured. The exchange between them is not measured.

    Args:
        args: the settings, whose class determines the algorithm; for several policies {role: settings, or an opponent}.
        memory_share: of the memory that is free, above 0 and at most 1.
        seconds: the shortest time of the iterations that a trial measures.
        num_steps: T of all trials; None to find it, too.
        body: makes the network, as in `train`.
        on_trial: called with each trial of this process when it is finished.
        shards, deterministic_shards, sync: as in `train`.

    Raises:
        ValueError: a share or a time out of range, or settings that do not fit at any size.
        OutOfMemoryError: no trial fits into the share of the memory.
        DeviceError, GpuvecError, gymnasium.error.Error: as `train`.
        ProcessesError, LostProcessError: as `train`.
    """
    if not 0.0 < memory_share <= 1.0 or not seconds > 0.0:
        raise ValueError(f"memory_share must be above 0 and at most 1, and seconds above 0, got {memory_share} and {seconds}.")
    configs = args if isinstance(args, Mapping) else {ALL: args}
    setting = shared_settings(configs).device
    with join_processes(setting) as joined, current_device(device := process_device(setting)):
        configs = {
            role: replace(config, device=device, num_envs=None) if isinstance(config, TrainingArgs) else config
            for role, config in configs.items()
        }
        joined.require_equal(comparable_settings(configs))
        processes, num_shards = divide({}, Sharding(shards, deterministic_shards, sync), 0, joined)
        free_caches(device)
        processes.wait_for_all()  # before one of them takes memory
        free = free_bytes(device)
        # The processes may all be on one machine, whose memory they share.
        max_bytes = None if free is None else int(memory_share * free / (processes.size if device == "cpu" else 1))
        on_trial = on_trial or (lambda _: None)
        search = _Search(configs, max_bytes, process_bytes(device), seconds, body, on_trial, num_shards // processes.size)
        search.run(device, num_steps)
        free_caches(device)
        trials = trials_of_all(search.trials, processes)
    best = fastest(trials)
    return Scale(best.num_envs, best.num_steps, trials)


@dataclass
class _Search:
    """Runs trials, and remembers them."""

    policies: PolicyConfigs
    """Their device is known."""
    max_bytes: int | None
    """The memory that a trial may add; None if the system does not report what is free."""
    bytes_before: int
    """The memory that the process has already."""
    seconds: float
    body: Bodies
    on_trial: OnTrial
    shards: int
    """Those of this process, which divide E."""
    trials: list[Trial] = field(default_factory=list)

    def run(self, device: str, num_steps: int | None) -> None:
        """Runs trials until sizes are found that others do not exceed.

        Args:
            device: "cpu" or "cuda:<index>".
            num_steps: T of all trials; None to find it, too.
        """
        T, shards = num_steps or shared_settings(self.policies).num_steps, self.shards
        E = max(1, FIRST_NUM_ENVS[device.partition(":")[0]] // shards) * shards
        if self.max_bytes is not None:
            with closing(make_training_env(shared_settings(self.policies), 1)) as env:
                bytes_per_env = ROLLOUTS_IN_MEMORY * rollout_bytes(env, T)
            while shards < E and E * bytes_per_env > self.max_bytes:
                E = max(1, E // shards // 2) * shards
        sizes = ((E << k, T) for k in range(MAX_NUM_ENVS.bit_length()) if E << k <= MAX_NUM_ENVS)
        self._climb(sizes, MAX_TRIALS_WITHOUT_GAIN)
        if num_steps is None:
            self._change_steps(2)
            if fastest(self.trials).num_steps == T:
                self._change_steps(0.5)

    def _change_steps(self, factor: float) -> None:
        """Runs trials whose rollouts are longer or shorter by a factor each time, as long as that gains something."""
        best = fastest(self.trials)
        lengths = (int(best.num_steps * factor**k) for k in range(1, 20))
        self._climb(((best.num_envs, length) for length in lengths if length >= 1), 1)

    def _climb(self, sizes: Iterator[tuple[int, int]], max_without_gain: int) -> None:
        """Runs trials of the sizes (E, T) until as many of them gain nothing, or until one would not fit."""
        without_gain = 0
        for num_envs, num_steps in sizes:
            speed_before = max((trial.speed for trial in self.trials), default=0.0)
            trial = self._try(num_envs, num_steps)
            self.trials.append(trial)
            self.on_trial(trial)
            if trial.is_too_large:
                return
            if trial.steps_per_second is not None:
                without_gain = 0 if trial.speed >= MIN_GAIN * speed_before else without_gain + 1
            if without_gain == max_without_gain:
                return

    def _try(self, num_envs: int, num_steps: int) -> Trial:
        """Runs a trial if the smallest upper bound that the measured trials give of its memory is allowed."""
        bounds = [
            max(each.num_bytes - self.bytes_before, 0)
            * max(1.0, num_envs / each.num_envs)
            * max(1.0, num_steps / each.num_steps)
            for each in self.trials
            if each.num_bytes
        ]
        predicted = int(min(bounds, default=0))
        if self.max_bytes is not None and predicted > self.max_bytes:
            reason = f"it may take {predicted:,} bytes more than the process had, and {self.max_bytes:,} are allowed"
            return Trial(num_envs, num_steps, reason=reason, is_too_large=True)
        return run_trial(self.policies, num_envs, num_steps, self.seconds, self.body, self.shards)


def run_trial(
    policies: PolicyConfigs, num_envs: int, num_steps: int, seconds: float, body: Bodies = None, shards: int = 1
) -> Trial:
    """Trains for some seconds in this process alone, and measures it.

    Args:
        policies: {role: policy}, whose device is known.
        num_envs: E.
        num_steps: T.
        seconds: the shortest time of the iterations that are measured.
        body: as in `train`.
        shards: the number of parts of the environments.
    """

    def at_size(config: PolicyConfig) -> PolicyConfig:
        """The settings of a policy for the size; DDPG is measured with its gradient steps, which otherwise begin later."""
        if not isinstance(config, TrainingArgs):
            return config
        config = replace(config, num_envs=num_envs, num_steps=num_steps, total_steps=ENDLESS, target_return=None)
        return replace(config, learning_starts=0) if isinstance(config, DDPGArgs) else config

    trial = Trial(num_envs, num_steps)
    try:
        configs = {role: at_size(config) for role, config in policies.items()}
        require_divisible(configs, shards, Processes())
    except ValueError as error:  # settings that do not fit each other, such as minibatches that do not divide the samples
        return trial._replace(reason=str(error))
    args = shared_settings(configs)
    free_caches(args.device)
    try:
        with torch_settings(args.device, args.threads), open_learner(configs, body, shards) as learner:
            if args.device != "cpu":
                learner.capture()
            count = WARM_UP_ITERATIONS
            while True:
                begin = time.perf_counter()
                for _ in range(count):
                    learner.iterate()
                learner.read()  # waits for the device
                elapsed = time.perf_counter() - begin
                if elapsed >= seconds and count > WARM_UP_ITERATIONS:
                    break
                count *= 2
            device = parse_device(args.device)
            if device.kind == "cuda":  # the largest memory since `free_caches`; on a CPU since the start of the process
                num_bytes: int | None = torch.cuda.max_memory_reserved(device.ordinal) + device.pooled_bytes()
            else:
                num_bytes = peak_resident_bytes()
            return trial._replace(steps_per_second=args.steps_per_iteration * count / elapsed, num_bytes=num_bytes)
    except OutOfMemoryError as error:  # raised before anything is allocated
        return trial._replace(reason=str(error), is_too_large=True)


def process_bytes(device: str) -> int:
    """Returns the memory that this process has now, as `Trial.num_bytes` counts it; 0 if the system does not report it.

    Args:
        device: "cpu" or "cuda:<index>".
    """
    parsed = parse_device(device)
    if parsed.kind == "cuda":
        return torch.cuda.memory_reserved(parsed.ordinal) + parsed.pooled_bytes()
    return resident_bytes() or 0


def free_caches(device: str) -> None:
    """Frees objects without references and memory that allocators keep, and forgets the largest memory of a GPU so far.

    Args:
        device: "cpu" or "cuda:<index>".
    """
    gc.collect()
    parsed = parse_device(device)
    if parsed.kind == "cuda":
        torch.cuda.empty_cache()
        with parsed.current():
            parsed.arrays.get_default_memory_pool().free_all_blocks()
        torch.cuda.reset_peak_memory_stats(parsed.ordinal)


def trials_of_all(trials: Sequence[Trial], processes: Processes) -> tuple[Trial, ...]:
    """Returns the trials with the environments, the speeds and the largest memory of all processes together.

    A trial that a process has not run counts as not run. All processes must call it.

    Args:
        trials: those of this process.
        processes: the processes.

    Raises:
        LostProcessError: another process ended.
    """
    gathered = [[Trial(*each) for each in of_process] for of_process in processes.gather_states([list(t) for t in trials])]
    by_size = [{(trial.num_envs, trial.num_steps): trial for trial in of_process} for of_process in gathered]
    combined = []
    for size, first in by_size[0].items():
        of_all = [of_process[size] for of_process in by_size if size in of_process]
        trial = next((each for each in of_all if each.steps_per_second is None), first)
        if len(of_all) < processes.size:
            trial = Trial(*size, reason="another process has not run it")
        elif trial.steps_per_second is not None:
            num_bytes = max((each.num_bytes for each in of_all if each.num_bytes is not None), default=None)
            trial = trial._replace(steps_per_second=sum(each.speed for each in of_all), num_bytes=num_bytes)
        combined.append(trial._replace(num_envs=trial.num_envs * processes.size))
    return tuple(combined)


def fastest(trials: Sequence[Trial]) -> Trial:
    """Returns the fastest trial.

    Args:
        trials: at least one.

    Raises:
        ValueError, OutOfMemoryError: none was run.
    """
    measured = [trial for trial in trials if trial.steps_per_second is not None]
    if not measured:
        last = trials[-1]
        error = OutOfMemoryError if last.is_too_large else ValueError
        raise error(f"no number of environments fits; with {last.num_envs:,} of {last.num_steps:,} steps: {last.reason}")
    return max(measured, key=lambda trial: trial.speed)
