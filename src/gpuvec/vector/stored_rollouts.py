"""Rollouts: many steps of all environments in one kernel, which keeps the state in registers and stores every step.

Letters: T steps, E envs, D features, K action components.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gpuvec.vector.outputs import OutputBuffers, Outputs


class Rollout(NamedTuple):
    """T steps of E environments, as arrays of the environment's framework."""

    obs: Any  # (T + 1, E, D) float32: action[t] was chosen from obs[t], and obs[T] follows the last step
    action: Any  # (T, E) or (T, E, K): those passed, else uint8 if they are 0 to 254 at most, else int32; float32 for a Box
    reward: Any  # (T, E) float32
    terminated: Any  # (T, E) bool
    truncated: Any  # (T, E) bool
    final_obs: Any = None  # in SAME_STEP (T, E, D) float32: the last observations of episodes that ended; other rows undefined
    final_mask: Any = None  # in SAME_STEP (T, E) bool: which rows of final_obs are defined


class RolloutBuffers(OutputBuffers):
    """Provides the arrays of rollouts, as `OutputBuffers` does for steps, under the names that `Rollout` has."""

    def arrays_for(self, out: Rollout | None, stream: int) -> Outputs:
        """Returns the arrays that the next rollout writes to.

        Args:
            out: the rollout to write to; None for new arrays.
            stream: the handle of the CUDA stream on which the rollout will be launched.

        Raises:
            ValueError: arrays of `out` that do not fit.
        """
        if out is None:
            return self.take(stream)
        return self.resolve_out({name: getattr(out, name) for name in self.names}, stream)


class RolloutStorage(NamedTuple):
    """The arrays of rollouts of one length."""

    obs: RolloutBuffers
    action: RolloutBuffers
    outcome: RolloutBuffers  # the other fields of a `Rollout`
