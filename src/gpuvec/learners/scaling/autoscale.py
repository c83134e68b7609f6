"""Finds the number of environments and the length of rollouts with which a training makes most steps per second.

What a training adds to the memory of the process grows at most in proportion to its environments and to the steps of a rollout.
So a trial of twice as many adds at most twice what a trial has added, and is run only if that fits into the memory that was
free. What the process had before, such as PyTorch's libraries, does not grow. The first trial is small enough by the arithmetic
of its rollout.

Letters: E environments, T steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from gpuvec.learners.algorithms import ALL
from gpuvec.learners.buffers.memory_check import free_bytes, rollout_bytes
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.cuda_graphs.settings import current_device
from gpuvec.learners.policy_configs import Bodies, PolicyConfigs, shared_settings
from gpuvec.learners.scaling.trial import Trial, free_caches, process_bytes, run_trial
from gpuvec.learners.scaling.trial_choice import fastest, speed, trials_of_all
from gpuvec.learners.shards.join import join_processes
from gpuvec.learners.shards.process_group import Processes
from gpuvec.learners.shards.sharding import comparable_settings, divide
from gpuvec.learners.shards.torchrun import Sharding, Sync, process_device
from gpuvec.learners.training import make_training_env

FIRST_NUM_ENVS = {"cpu": 16, "cuda": 1024}
MAX_NUM_ENVS = 2**26
MIN_GAIN = 1.02  # a trial that is not faster by this factor counts as no gain
MAX_TRIALS_WITHOUT_GAIN = 2
ROLLOUTS_IN_MEMORY = 4  # the rollout of a first trial, and what a learner stores and computes beside it, at most
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
        return next(speed(t) for t in self.trials if (t.num_envs, t.num_steps) == (self.num_envs, self.num_steps))


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
        max_bytes = _max_bytes(device, memory_share, processes)
        on_trial = on_trial or (lambda _: None)
        search = _Search(configs, max_bytes, process_bytes(device), seconds, body, on_trial, num_shards // processes.size)
        search.run(device, num_steps)
        free_caches(device)
        trials = trials_of_all(search.trials, processes)
    best = fastest(trials)
    return Scale(best.num_envs, best.num_steps, trials)


def _max_bytes(device: str, memory_share: float, processes: Processes) -> int | None:
    """Returns the memory that a trial of this process may take; None if the system does not report what is free."""
    free_caches(device)
    processes.wait_for_all()  # before one of them takes memory
    free = free_bytes(device)
    # The processes may all be on one machine, whose memory they share.
    shares = processes.size if device == "cpu" else 1
    return None if free is None else int(memory_share * free / shares)


class _Search:
    """Runs trials, and remembers them.

    Args:
        policies: {role: policy}, whose device is known.
        max_bytes: the memory that a trial may add; None if the system does not report what is free.
        bytes_before: the memory that the process has already.
        seconds, body, on_trial: as in `autoscale`.
        shards: of this process, which divide E.
    """

    def __init__(
        self,
        policies: PolicyConfigs,
        max_bytes: int | None,
        bytes_before: int,
        seconds: float,
        body: Bodies,
        on_trial: OnTrial,
        shards: int,
    ) -> None:
        self._policies, self._max_bytes, self._bytes_before, self._seconds = policies, max_bytes, bytes_before, seconds
        self._body, self._on_trial, self._shards = body, on_trial, shards
        self.trials: list[Trial] = []

    def run(self, device: str, num_steps: int | None) -> None:
        """Runs trials until sizes are found that others do not exceed.

        Args:
            device: "cpu" or "cuda:<index>".
            num_steps: T of all trials; None to find it, too.
        """
        first_num_steps = num_steps or shared_settings(self._policies).num_steps
        self.double_envs(self.first_num_envs(device, first_num_steps), first_num_steps)
        if num_steps is None:
            self.change_steps(2)
            if self.best.num_steps == first_num_steps:
                self.change_steps(0.5)

    @property
    def best(self) -> Trial:
        """The fastest trial.

        Raises:
            ValueError, OutOfMemoryError: none was run.
        """
        return fastest(self.trials)

    def first_num_envs(self, device: str, num_steps: int) -> int:
        """Returns how many environments the first trial has: fewer than usual if their rollouts would not fit.

        Args:
            device: "cpu" or "cuda:<index>".
            num_steps: T.
        """
        shards = self._shards
        num_envs = max(1, FIRST_NUM_ENVS[device.partition(":")[0]] // shards) * shards
        if self._max_bytes is None:
            return num_envs
        with closing(make_training_env(shared_settings(self._policies), 1)) as env:
            bytes_per_env = ROLLOUTS_IN_MEMORY * rollout_bytes(env, num_steps)
        while num_envs > shards and num_envs * bytes_per_env > self._max_bytes:
            num_envs = max(1, num_envs // shards // 2) * shards
        return num_envs

    def double_envs(self, num_envs: int, num_steps: int) -> None:
        """Runs trials with twice as many environments each time, until two of them gain nothing or the next would not fit.

        Args:
            num_envs: E of the first trial.
            num_steps: T.
        """
        self._climb((num_envs << k, num_steps) for k in range(MAX_NUM_ENVS.bit_length()) if num_envs << k <= MAX_NUM_ENVS)

    def change_steps(self, factor: float) -> None:
        """Runs trials with other lengths of rollouts, as long as that gains something.

        Args:
            factor: of the length of each rollout to the one before, 2 or 0.5.
        """
        best, num_steps = self.best, self.best.num_steps
        lengths = [int(num_steps * factor**k) for k in range(1, 20)]
        self._climb(((best.num_envs, length) for length in lengths if length >= 1), max_without_gain=1)

    def _climb(self, sizes: Iterator[tuple[int, int]], max_without_gain: int = MAX_TRIALS_WITHOUT_GAIN) -> None:
        """Runs trials of the sizes (E, T) until as many of them gain nothing, or until one would not fit."""
        without_gain = 0
        for num_envs, num_steps in sizes:
            speed_before = max((speed(trial) for trial in self.trials), default=0.0)
            trial = self._try(num_envs, num_steps)
            self.trials.append(trial)
            self._on_trial(trial)
            if trial.is_too_large:
                return
            if trial.steps_per_second is not None:
                without_gain = 0 if speed(trial) >= MIN_GAIN * speed_before else without_gain + 1
            if without_gain == max_without_gain:
                return

    def _try(self, num_envs: int, num_steps: int) -> Trial:
        """Runs a trial if it fits into the memory."""
        predicted = self._predicted_bytes(num_envs, num_steps)
        if self._max_bytes is not None and predicted > self._max_bytes:
            reason = f"it may take {predicted:,} bytes more than the process had, and {self._max_bytes:,} are allowed"
            return Trial(num_envs, num_steps, reason=reason, is_too_large=True)
        return run_trial(self._policies, num_envs, num_steps, self._seconds, self._body, self._shards)

    def _predicted_bytes(self, num_envs: int, num_steps: int) -> int:
        """Returns the smallest upper bound that the measured trials give of the memory that a trial adds; 0 without one."""
        bounds = [
            max(trial.num_bytes - self._bytes_before, 0)
            * max(1.0, num_envs / trial.num_envs)
            * max(1.0, num_steps / trial.num_steps)
            for trial in self.trials
            if trial.num_bytes
        ]
        return int(min(bounds, default=0))
