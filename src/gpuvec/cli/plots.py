"""What pictures of learning curves have in common, and the import of the packages that draw them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from gpuvec.cli.terminal import printable
from gpuvec.errors import MissingExtraError, install_command
from gpuvec.learners.metric_names import ENV_METRICS
from gpuvec.learners.runs.curves import Panel

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#777777")
"""The palette of Okabe and Ito, 2008, which people with any form of colour blindness can distinguish; without yellow, and with
grey in place of black, which a dark page hides."""
MAX_PANELS = 40


def import_extra(module: str, extra: str) -> Any:
    """Imports and returns a module of an optional package.

    Args:
        module: its dotted name.
        extra: the extra of gpuvec that installs the package.

    Raises:
        MissingExtraError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(f"this picture needs {package} ({error}): {install_command(extra)}") from error


def require_few_panels(panels: Sequence[Panel]) -> None:
    """Checks that a picture is not too long.

    Args:
        panels: the panels.

    Raises:
        ValueError: there are more than `MAX_PANELS`.
    """
    if len(panels) > MAX_PANELS:
        raise ValueError(f"the curves have {len(panels)} panels, one for each environment and role: give fewer runs.")


def panel_title(panel: Panel) -> str:
    """Returns the title of a panel: its environment, and the role if there are several policies.

    Args:
        panel: the panel.
    """
    role = panel.metric_name.rpartition("/")[0]
    return printable(panel.env if role in ("", ENV_METRICS) else f"{panel.env}, {role}")


def metric_title(panel: Panel) -> str:
    """Returns the title of the vertical axis.

    Args:
        panel: the panel.
    """
    return printable(panel.metric_name.rpartition("/")[2].replace("_", " "))


def line_dash(color_index: int) -> int:
    """Returns the number of the dash pattern, 0 for a solid line; it changes where the colors repeat.

    Args:
        color_index: the number of the line's group.
    """
    return color_index // len(COLORS) % 4
