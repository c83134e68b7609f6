"""A look at the numbers of an iteration, on the device: which part met one that is not finite, and in which row.

Parts write what they find into a tensor, which is read with the metrics, so that nothing waits and graphs may hold it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from gpuvec.errors import ActionError, NonFiniteError

CLEAN = -1  # what stands for no fault
ALLOWED = "an allowed action"  # what `look_at_allowed` looks for in each row
LEARNED = {"improve": ("a mean over the minibatches, such as the loss,", "a parameter")}  # what `look_at_learned` looks at


class Guard:
    """What is looked at in each part, by its name.

    Args:
        rows: what has a row E: {part: names of the (T, E) or (T, E, K) tensors that it hands to `look_at_rows`}.
        whole: what has none: likewise for `look_at`. A fault spreads from the former to the latter, in the order given.
        device: where the tensors are.
    """

    def __init__(self, rows: Mapping[str, Sequence[str]], whole: Mapping[str, Sequence[str]], device: str) -> None:
        self.looks = [(part, what, kind is rows) for kind in (rows, whole) for part in kind for what in kind[part]]
        self.found = torch.full((len(self.looks),), CLEAN, dtype=torch.int64, device=device)

    def look_at_rows(self, part: str, *values: Tensor) -> None:
        """Notes for each the lowest row that has numbers that are not finite."""
        finite = [value.isfinite() if value.dim() == 2 else value.isfinite().all(-1) for value in values]
        sound = torch.stack([each.all(0) for each in finite])  # (looks, E)
        self._note(part, torch.where(sound.all(1), CLEAN, sound.int().argmin(1)))

    def look_at_allowed(self, allowed: Tensor) -> None:
        """Notes the lowest row of `allowed`, (T, E) bool, in which the policy had no action to choose from in some step."""
        sound = allowed.all(0, keepdim=True)
        where = next(k for k, look in enumerate(self.looks) if look[1] == ALLOWED)
        self.found[where] = torch.where(sound.all(1), CLEAN, sound.int().argmin(1))[0]

    def look_at(self, part: str, *values: Tensor) -> None:
        """Notes for each whether it has such numbers."""
        sound = torch.stack([value.isfinite().all() for value in values])
        self._note(part, torch.where(sound, CLEAN, 0))

    def look_at_learned(self, metrics: Tensor, parameters: Iterable[Tensor]) -> None:
        """Likewise for what an update wrote."""
        self.look_at("improve", metrics, torch.stack(torch._foreach_norm(list(parameters))))

    def _note(self, part: str, found: Tensor) -> None:
        first = next(k for k, look in enumerate(self.looks) if look[0] == part)
        self.found[first : first + len(found)] = found

    def check(self, found: Sequence[float], iteration: int, env: str, agents: int, role: str = "") -> None:
        """Raises if `found`, the tensor as numbers, tells of a fault.

        Args:
            found: as it was read.
            iteration: which one this was, from 1.
            env: id of the environment.
            agents: rows of an env.
            role: of the agents, if they are some of an environment's.

        Raises:
            NonFiniteError, ActionError: of what came first.
        """
        for (part, what, by_row), row in zip(self.looks, found, strict=True):
            if row != CLEAN:
                e, i = divmod(int(row), agents)
                where = f"row {e}{f', agent {i},' if agents > 1 else ''} of " if by_row else ""
                where += f"{role} in " if role else ""
                if what == ALLOWED:
                    raise ActionError(
                        f"`allowed` of the body forbids all actions: in iteration {iteration}, {where}{env}. It must allow at "
                        "least one action of each component in every observation."
                    )
                raise NonFiniteError(
                    f"{what} is not finite: seen by {part} in iteration {iteration}, {where}{env}. Lower the learning rate, "
                    "or see whether all rewards and observations of the environment are finite."
                )
