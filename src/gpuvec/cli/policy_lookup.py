"""Finds the trained policies that a command line names."""

from __future__ import annotations

from gpuvec.learners.policy_files.trained_policy import TrainedPolicy, load_contents
from gpuvec.learners.runs.checkpoint import require_trained_policies


def find_policy(name_or_path: str, device: str = "cpu", trust: bool = False) -> TrainedPolicy:
    """Returns trained policies.

    Args:
        name_or_path: a run folder, a checkpoint, a policy file, or the name of a policy that comes with gpuvec.
        device: of the networks.
        trust: whether the module that it names for its environment may be imported, which runs the module's code.

    Raises:
        FileNotFoundError: there is no such policy.
        StateError: a policy of the run was not trained, or the policies do not fit the environment.
        CheckpointError: the file cannot be used, or the module is not imported yet and not trusted.
    """
    contents, path = load_contents(name_or_path, trust)
    require_trained_policies(contents, path)
    return TrainedPolicy(contents, device)
