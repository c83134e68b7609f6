"""Saves the replay of a training that met a number that is not finite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuvec.cli.progress import waiting
from gpuvec.errors import FaultLocation, GpuvecError
from gpuvec.learners.config.training_config import TrainingArgs

if TYPE_CHECKING:
    from gpuvec.learners.runs.run_writer import RunWriter

NUM_STATES = 100  # of a replay


def save_failure(
    run: RunWriter, location: FaultLocation, policies: Mapping[str, TrainingArgs], checkpoint: Mapping[str, Any] | None
) -> str:
    """Saves the last states of the row that broke in the run folder, and returns a sentence about it.

    Args:
        run: the run folder.
        location: where the number was.
        policies: {role: settings}.
        checkpoint: the checkpoint from which the run continued; None for a new run.
    """
    from gpuvec.learners.fault_recording import record_fault
    from gpuvec.replay.document import to_page
    from gpuvec.replay.failure import make_failure_replay

    try:
        with waiting("training again from a checkpoint, to record the states before the failure (Ctrl-C leaves it out)"):
            start = find_start(run.path, location, policies) or checkpoint
            recording = record_fault(policies, location, start, num_states=NUM_STATES)
        if recording is None:
            return "A training from the checkpoint before did not meet it, so there is no replay."
        path = run.save_failure(to_page(make_failure_replay(recording)).encode())
    except KeyboardInterrupt:
        return "Its replay was left out."
    except (GpuvecError, RuntimeError) as error:
        return f"It cannot be replayed: {error}"
    num_states = len(recording.episode.rewards) + 1
    return f"The last {num_states} states of this row are in {path}: gpuvec watch {run.path}"


def find_start(run: Path, location: FaultLocation, policies: Mapping[str, TrainingArgs]) -> dict[str, Any] | None:
    """Returns the newest checkpoint after which enough states follow, or else the oldest; None for the beginning of the run.

    Args:
        run: the path of the run folder.
        location: where the number was.
        policies: {role: settings}.
    """
    from gpuvec.learners.fault_recording import num_iterations_before
    from gpuvec.learners.runs.checkpoint import list_checkpoints, load

    num_steps = next(iter(policies.values())).num_steps
    last = location.iteration - 1 - num_iterations_before(num_steps, NUM_STATES)
    if last <= 0:
        return None
    newest_first = [load(path) for path in reversed(list_checkpoints(run))]
    old_enough = [checkpoint for checkpoint in newest_first if checkpoint["iteration"] <= last]
    return next(iter(old_enough or newest_first[-1:]), None)
