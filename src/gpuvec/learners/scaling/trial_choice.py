"""Which trial is the fastest, of one process or of several that measured the same sizes."""

from __future__ import annotations

from collections.abc import Sequence

from gpuvec.errors import OutOfMemoryError
from gpuvec.learners.scaling.trial import Trial
from gpuvec.learners.shards.process_group import Processes


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
            trial = trial._replace(steps_per_second=sum(map(speed, of_all)), num_bytes=num_bytes)
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
    return max(measured, key=speed)


def speed(trial: Trial) -> float:
    """Returns the steps per second of a trial; 0 if it was not run.

    Args:
        trial: the trial.
    """
    return trial.steps_per_second or 0.0
