"""What older packages import and today's lack: gymnasium under the name gym, and NumPy's `row_stack`."""

from __future__ import annotations

import importlib.util
import sys


def stand_in() -> None:
    """Puts them where they are looked for; a gym that is installed stays."""
    import gymnasium.envs.classic_control  # noqa: F401  # which WarpDrive looks for by its old name
    import numpy as np

    if not hasattr(np, "row_stack"):
        np.row_stack = np.vstack  # noqa: NPY201  # it puts back what NumPy removed
    if importlib.util.find_spec("gym") is None:
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == "gymnasium":
                sys.modules["gym" + name.removeprefix("gymnasium")] = module
