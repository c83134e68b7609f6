"""Checks on the device that the numbers of an iteration are finite; a report names the part of the learner and the row.

The checks write rows into a tensor that the host reads with the metrics, so they need no synchronisation and can be captured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from gpuvec.errors import ActionError, FaultLocation, NonFiniteError
from gpuvec.learners.algorithms import ALL

NO_FAULT = -1  # instead of a row
ALLOWED = "an allowed action"  # the quantity of `check_allowed`
# The quantities of `check_update_finite`.
LEARNED = {"improve": ("a mean over the minibatches, such as the loss,", "a parameter")}


class Guard:
    """The checks of a learner, by the part of it that makes them.

    Args:
        rows: {part: names of the (T, E) or (T, E, K) tensors that it passes to `check_rows_finite`}.
        whole: {part: names of the tensors without rows that it passes to `check_finite`}. Faults spread from
            `rows` to `whole`, in this order, so the first one is reported.
        device: of the tensors, "cpu" or "cuda:<index>".
    """

    def __init__(self, rows: Mapping[str, Sequence[str]], whole: Mapping[str, Sequence[str]], device: str) -> None:
        self.checks = [(part, name, group is rows) for group in (rows, whole) for part in group for name in group[part]]
        self.fault_rows = torch.full((len(self.checks),), NO_FAULT, dtype=torch.int64, device=device)

    def check_rows_finite(self, part: str, *values: Tensor) -> None:
        """Records, for each of the `values` (T, E) or (T, E, K), the lowest row with a number that is not finite.

        Args:
            part: the part of the learner, a key of `rows`.
            values: its tensors, in the order of their names.
        """
        finite = [value.isfinite() if value.dim() == 2 else value.isfinite().all(-1) for value in values]
        is_finite = torch.stack([steps.all(0) for steps in finite])  # (tensors, E)
        self._record(part, torch.where(is_finite.all(1), NO_FAULT, is_finite.int().argmin(1)))

    def check_allowed(self, any_allowed: Tensor, mask: Tensor | None = None) -> None:
        """Records the lowest row in which the policy had no allowed action in some step.

        Args:
            any_allowed: (T, E) bool: whether an action of each component was allowed.
            mask: (T, E) bool: the steps in which the policy acted; None for all.
        """
        has_action = (any_allowed if mask is None else any_allowed | ~mask).all(0, keepdim=True)
        index = next(k for k, (_, name, _) in enumerate(self.checks) if name == ALLOWED)
        self.fault_rows[index] = torch.where(has_action.all(1), NO_FAULT, has_action.int().argmin(1))[0]

    def check_finite(self, part: str, *values: Tensor) -> None:
        """Records 0 for each of the `values`, tensors of any shape (...), that has a number that is not finite.

        Args:
            part: the part of the learner, a key of `whole`.
            values: its tensors, in the order of their names.
        """
        is_finite = torch.stack([value.isfinite().all() for value in values])
        self._record(part, torch.where(is_finite, NO_FAULT, 0))

    def check_update_finite(self, metrics: Tensor, parameters: Iterable[Tensor]) -> None:
        """Checks the `metrics`, (N,), and the `parameters`, of any shapes, that an update wrote."""
        self.check_finite("improve", metrics, torch.stack(torch._foreach_norm(list(parameters))))

    def _record(self, part: str, rows: Tensor) -> None:
        first = next(k for k, check in enumerate(self.checks) if check[0] == part)
        self.fault_rows[first : first + len(rows)] = rows

    def raise_fault(self, fault_rows: Sequence[float], iteration: int, env: str, agents: int, role: str = "") -> None:
        """Raises the first fault in `fault_rows`, if there is one.

        Args:
            fault_rows: the values of the tensor of this name, read on the host.
            iteration: the iteration that they are from, counted from 1.
            env: id of the environment.
            agents: rows of an environment.
            role: the role of the agents; "" for all agents.

        Raises:
            NonFiniteError: a number is not finite.
            ActionError: an action mask allowed no action.
        """
        for (part, quantity, has_rows), row in zip(self.checks, fault_rows, strict=True):
            if row != NO_FAULT:
                e, i = divmod(int(row), agents)
                where = f"row {e}{f', agent {i},' if agents > 1 else ''} of " if has_rows else ""
                where += f"{role} in " if role else ""
                if quantity == ALLOWED:
                    raise ActionError(
                        f"all actions are forbidden: in iteration {iteration}, {where}{env}. `allowed` of the body and the "
                        "environment's action mask must allow at least one action of each component in every observation."
                    )
                raise NonFiniteError(
                    f"{quantity} is not finite: detected by {part} in iteration {iteration}, {where}{env}. Lower the learning "
                    "rate, or check that all rewards and observations of the environment are finite.",
                    FaultLocation(iteration, role or ALL, int(row)) if has_rows else None,
                )


def lowest_fault(fault_rows: Tensor) -> Tensor:
    """Returns the lowest row of all shards, (N,) int64, for `fault_rows`, (S, N) int64."""
    largest = torch.iinfo(fault_rows.dtype).max
    first_rows = fault_rows.where(fault_rows != NO_FAULT, largest).amin(0)
    return first_rows.where(first_rows != largest, NO_FAULT)
