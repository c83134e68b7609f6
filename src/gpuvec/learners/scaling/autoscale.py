"""Finds the number of environments and the length of rollouts with which a training makes most steps per second.

The memory of a training grows at most in proportion to its environments and to the steps of a rollout. So a trial of twice as
many takes at most twice the memory that the process had, and is run only if that fits. The first trial is small enough by the
arithmetic of its rollout.

Letters: E environments, T steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from gpuvec.engine.backends.device import parse_device
from gpuvec.errors import OutOfMemoryError
from gpuvec.learners.algorithms import ALL
from gpuvec.learners.buffers.action_mask import action_mask_shape
from gpuvec.learners.buffers.memory_check import free_bytes, rollout_bytes
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.policy_configs import Bodies, PolicyConfigs, shared_settings
from gpuvec.learners.scaling.trial import Trial, free_caches, run_trial
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
        return next(_speed(t) for t in self.trials if (t.num_envs, t.num_steps) == (self.num_envs, self.num_steps))


def autoscale(
    args: TrainingArgs | PolicyConfigs,
    *,
    memory_share: float = 0.8,
    seconds: float = 0.5,
    num_steps: int | None = None,
    body: Bodies = None,
    on_trial: OnTrial | None = None,
) -> Scale:
    """Finds the number of environments and the length of rollouts with the highest steps per second.

    It measures whole iterations of short trainings, with twice as many environments each time until that gains nothing, and
    then with other lengths of rollouts. The fastest sizes are not always those that learn with the fewest steps: the settings
    that are tuned for other sizes, such as the learning rate, may have to change.

    Args:
        args: the settings, whose class determines the algorithm; for several policies {role: settings, or an opponent}.
        memory_share: of the memory that is free, above 0 and at most 1.
        seconds: the shortest time of the iterations that a trial measures.
        num_steps: T of all trials; None to find it, too.
        body: makes the network, as in `train`.
        on_trial: called with each trial when it is finished.

    Raises:
        ValueError: a share or a time out of range, or settings that do not fit at any size.
        OutOfMemoryError: no trial fits into the share of the memory.
        DeviceError, GpuvecError, gymnasium.error.Error: as `train`.
    """
    if not 0.0 < memory_share <= 1.0 or not seconds > 0.0:
        raise ValueError(f"memory_share must be above 0 and at most 1, and seconds above 0, got {memory_share} and {seconds}.")
    configs = args if isinstance(args, Mapping) else {ALL: args}
    device = str(parse_device(shared_settings(configs).device))
    configs = {
        role: replace(config, device=device, num_envs=None) if isinstance(config, TrainingArgs) else config
        for role, config in configs.items()
    }
    free_caches(device)
    free = free_bytes(device)
    search = _Search(configs, None if free is None else int(memory_share * free), seconds, body, on_trial or (lambda _: None))
    first_num_steps = num_steps or shared_settings(configs).num_steps
    search.double_envs(search.first_num_envs(device, first_num_steps), first_num_steps)
    if num_steps is None:
        search.change_steps(2)
        if search.best.num_steps == first_num_steps:
            search.change_steps(0.5)
    free_caches(device)
    best = search.best
    return Scale(best.num_envs, best.num_steps, tuple(search.trials))


class _Search:
    """Runs trials, and remembers them.

    Args:
        policies: {role: policy}, whose device is known.
        max_bytes: the memory that a trial may take; None if the system does not report what is free.
        seconds, body, on_trial: as in `autoscale`.
    """

    def __init__(self, policies: PolicyConfigs, max_bytes: int | None, seconds: float, body: Bodies, on_trial: OnTrial) -> None:
        self._policies, self._max_bytes, self._seconds = policies, max_bytes, seconds
        self._body, self._on_trial = body, on_trial
        self.trials: list[Trial] = []

    @property
    def best(self) -> Trial:
        """The fastest trial.

        Raises:
            ValueError, OutOfMemoryError: none was run.
        """
        measured = [trial for trial in self.trials if trial.steps_per_second is not None]
        if not measured:
            last = self.trials[-1]
            error = OutOfMemoryError if last.is_too_large else ValueError
            raise error(f"no number of environments fits; with {last.num_envs:,} of {last.num_steps:,} steps: {last.reason}")
        return max(measured, key=_speed)

    def first_num_envs(self, device: str, num_steps: int) -> int:
        """Returns how many environments the first trial has: fewer than usual if their rollouts would not fit.

        Args:
            device: "cpu" or "cuda:<index>".
            num_steps: T.
        """
        num_envs = FIRST_NUM_ENVS[device.partition(":")[0]]
        if self._max_bytes is None:
            return num_envs
        with closing(make_training_env(shared_settings(self._policies), 1)) as env:
            bytes_per_env = ROLLOUTS_IN_MEMORY * rollout_bytes(env, num_steps, action_mask_shape(env))
        while num_envs > 1 and num_envs * bytes_per_env > self._max_bytes:
            num_envs //= 2
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
            speed_before = max((_speed(trial) for trial in self.trials), default=0.0)
            trial = self._try(num_envs, num_steps)
            self.trials.append(trial)
            self._on_trial(trial)
            if trial.is_too_large:
                return
            if trial.steps_per_second is not None:
                without_gain = 0 if _speed(trial) >= MIN_GAIN * speed_before else without_gain + 1
            if without_gain == max_without_gain:
                return

    def _try(self, num_envs: int, num_steps: int) -> Trial:
        """Runs a trial if it fits into the memory."""
        predicted = self._predicted_bytes(num_envs, num_steps)
        if self._max_bytes is not None and predicted > self._max_bytes:
            reason = f"it may take {predicted:,} bytes, and {self._max_bytes:,} are allowed"
            return Trial(num_envs, num_steps, reason=reason, is_too_large=True)
        return run_trial(self._policies, num_envs, num_steps, self._seconds, self._body)

    def _predicted_bytes(self, num_envs: int, num_steps: int) -> int:
        """Returns the smallest upper bound of the memory that the measured trials give; 0 without one."""
        bounds = [
            trial.num_bytes * max(1.0, num_envs / trial.num_envs) * max(1.0, num_steps / trial.num_steps)
            for trial in self.trials
            if trial.num_bytes
        ]
        return int(min(bounds, default=0))


def _speed(trial: Trial) -> float:
    return trial.steps_per_second or 0.0
