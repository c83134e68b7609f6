"""The errors that gpuvec raises::

    GpuvecError
      AuthoringError          an environment file breaks a rule of device code        (TypeError)
      UnknownParameterError   a keyword that the environment does not have            (TypeError)
      FixedParameterError     another value of a parameter on which shapes depend     (TypeError)
      DeviceError             a device that does not exist or cannot be used          (RuntimeError)
      ForkError               a CUDA environment used in a forked process             (RuntimeError)
      OutOfMemoryError        more memory is needed than the device has free          (MemoryError)
      MissingExtraError       a package of an extra that is not installed             (ImportError)
      StaleGraphError         a captured graph whose kernels were rebuilt since       (RuntimeError)
      ActionError             actions out of range, with `validate=True`              (ValueError)
      StateError              a state that does not fit the environment               (ValueError)
        CheckpointError       a checkpoint or run folder that is damaged or refused    (ValueError)
      ReplayError             a replay that cannot be written, or is damaged          (ValueError)
      ServerError             a port that cannot be used                              (OSError)
      RunInUseError           a run folder that another process is writing to          (RuntimeError)
      RunWriteError           a file of a run folder that cannot be written            (OSError)
      ExportError             an exported program that does not equal its network     (RuntimeError)
      NonFiniteError          training met a number that is not finite                (FloatingPointError)
      ProcessesError          the processes of a training do not fit together         (RuntimeError)
        LostProcessError      another process of a training ended                      (RuntimeError)

Each also derives from the built-in class that a user of Gymnasium would catch.
"""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit


def install_command(extras: str = "") -> str:
    """The command that installs extras of this gpuvec from where it came, as messages show it.

    Args:
        extras: their names, separated by commas; "" for gpuvec itself.
    """
    names = f"[{extras}]" if extras else ""
    sources = Path(__file__).parents[1]
    if sources.name == "src" and (sources.parent / "pyproject.toml").is_file():
        return f'pip install -e "{sources.parent}{names}"'
    try:  # the format is that of PEP 610
        origin = json.loads(distribution("gpuvec").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {}
    url, repository = origin.get("url", ""), origin.get("vcs_info")
    if "dir_info" in origin:
        return f'pip install "{unquote(urlsplit(url).path)}{names}"'
    if repository:
        url = f"{repository['vcs']}+{url}@{repository['commit_id']}"
    return f'pip install "gpuvec{names} @ {url}"' if url else f'pip install "gpuvec{names}"'


class GpuvecError(Exception):
    """The base class of all errors that gpuvec defines. It also raises errors of Gymnasium."""


class AuthoringError(GpuvecError, TypeError):
    """An environment file breaks a rule of device code; the message names the place and a remedy."""


class UnknownParameterError(GpuvecError, TypeError):
    """A keyword argument is not a parameter of the environment."""


class FixedParameterError(GpuvecError, TypeError):
    """A new value for a parameter on which shapes depend, or for one row of a parameter that all rows share.

    Both are fixed when the environment is created.
    """


class DeviceError(GpuvecError, RuntimeError):
    """The device does not exist or cannot be used."""


class ForkError(GpuvecError, RuntimeError):
    """A CUDA environment is used in a process that was forked after CUDA started."""


class OutOfMemoryError(GpuvecError, MemoryError):
    """An environment or a learner needs more memory than the device has free; nothing was allocated or written."""


class MissingExtraError(GpuvecError, ImportError):
    """A package of an optional extra is not installed; the message names the extra."""


class StaleGraphError(GpuvecError, RuntimeError):
    """The kernels of a captured CUDA graph were rebuilt after its capture."""


class ActionError(GpuvecError, ValueError):
    """Actions are outside the action space."""


class StateError(GpuvecError, ValueError):
    """A state does not fit the environment."""


class CheckpointError(StateError):
    """A checkpoint or a run folder is damaged, was not written by gpuvec, or names a module that is not trusted."""


class RunInUseError(GpuvecError, RuntimeError):
    """Another process is writing to the run folder."""


class RunWriteError(GpuvecError, OSError):
    """A file of a run folder cannot be written, for example because the disk is full."""


class ExportError(GpuvecError, RuntimeError):
    """An exported policy computes other numbers than its network."""


class FaultLocation(NamedTuple):
    """Where a training met a number that is not finite."""

    iteration: int
    """The iteration, counted from 1."""
    role: str
    """The role of the policy; "all" for one of all agents."""
    row: int
    """The agent of the policy, or the environment of one agent, in the order of the environments."""


class NonFiniteError(GpuvecError, FloatingPointError):
    """A number in training is not finite; the message names the part of the learner, the iteration and the environment.

    Args:
        message: the message.
        location: where it was; None if it belongs to no row, such as a parameter of a network.

    Attributes:
        location: the same.
    """

    def __init__(self, message: str, location: FaultLocation | None = None) -> None:
        super().__init__(message)
        self.location = location


class ProcessesError(GpuvecError, RuntimeError):
    """The processes of a training do not fit together, or one of them is missing; all of them raise it with one message."""


class LostProcessError(ProcessesError):
    """Another process of the training ended or does not answer; a restart may continue from the last checkpoint."""

    is_first_alive = False  # whether this process has the lowest number of those that still run, and so reports the error
    exit_status = 75  # of the command line: EX_TEMPFAIL of sysexits.h, a failure after which a second attempt may succeed


class CompilerWarning(UserWarning):
    """A warning of the C++ compiler about an author's functions."""


class ReplayError(GpuvecError, ValueError):
    """A replay cannot be written, or a file is not a complete replay of this format."""


class ServerError(GpuvecError, OSError):
    """A server cannot listen on its port."""
