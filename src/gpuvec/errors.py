"""The errors that gpuvec raises::

    GpuvecError
      AuthoringError          an environment file breaks a rule of device code        (TypeError)
      UnknownParameterError   a keyword that the environment does not have            (TypeError)
      DeviceError             a device that does not exist or cannot be used          (RuntimeError)
      ForkError               a CUDA environment used in a forked process             (RuntimeError)
      OutOfMemoryError        more than the device holds                              (MemoryError)
      MissingExtraError       a package of an extra that is not installed             (ImportError)
      StaleGraphError         a captured graph whose kernels were rebuilt since       (RuntimeError)
      ActionError             actions out of range, found by `validate=True`          (ValueError)
      StateError              a state that does not fit the environment               (ValueError)
        CheckpointError       a checkpoint or run folder that is damaged or refused    (ValueError)
      RunInUseError           a run folder that another process is writing to          (RuntimeError)
      RunWriteError           a file of a run folder that cannot be written            (OSError)
      NonFiniteError          training met a number that is not finite                (FloatingPointError)

Each also derives from the built-in class that a user of Gymnasium would catch.
"""

from __future__ import annotations


class GpuvecError(Exception):
    """Whatever gpuvec raises on purpose, apart from Gymnasium's own errors."""


class AuthoringError(GpuvecError, TypeError):
    """An environment file breaks a rule of device code."""


class UnknownParameterError(GpuvecError, TypeError):
    """A keyword argument that the environment does not have."""


class DeviceError(GpuvecError, RuntimeError):
    """A device that does not exist or cannot be used."""


class ForkError(GpuvecError, RuntimeError):
    """A CUDA environment used in a process that was forked after CUDA started."""


class OutOfMemoryError(GpuvecError, MemoryError):
    """More memory asked for than the device has free."""


class MissingExtraError(GpuvecError, ImportError):
    """A package of an optional extra that is not installed."""


class StaleGraphError(GpuvecError, RuntimeError):
    """A captured graph whose kernels were rebuilt since its capture."""


class ActionError(GpuvecError, ValueError):
    """Actions outside the action space."""


class StateError(GpuvecError, ValueError):
    """A state that does not fit the environment."""


class CheckpointError(StateError):
    """A checkpoint or a run folder that is damaged, was not written by gpuvec, or asks for more than it may."""


class RunInUseError(GpuvecError, RuntimeError):
    """A run folder that another process is writing to."""


class RunWriteError(GpuvecError, OSError):
    """A file of a run folder that cannot be written, for example because the disk is full."""


class NonFiniteError(GpuvecError, FloatingPointError):
    """Training met a number that is not finite; the message names the part, the iteration and the environment."""
