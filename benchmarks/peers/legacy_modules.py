"""Names that older packages import and that today's packages lack: gymnasium as gym, and NumPy's `row_stack`."""

from __future__ import annotations

import importlib.util
import sys


def provide_legacy_modules() -> None:
    """Makes the names importable; an installed gym takes precedence."""
    import gymnasium.envs.classic_control  # noqa: F401  # WarpDrive imports it by its old name
    import numpy as np

    if not hasattr(np, "row_stack"):
        np.row_stack = np.vstack  # noqa: NPY201  # defines what NumPy removed
    if importlib.util.find_spec("gym") is None:
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == "gymnasium":
                sys.modules["gym" + name.removeprefix("gymnasium")] = module
